"""`lmcache plugins show`: one offer with its settings, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, get_args

from pydantic import BaseModel

from lmcache_client.errors import ConfigError, LMCacheError
from lmcache_core.app.console.text_table import text_table
from lmcache_core.app.plugins.example_line import example_line
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.missing_modules import missing_modules
from lmcache_core.app.plugins.plugin_hooks import Offered
from lmcache_core.app.plugins.plugin_report import capability_words, offer_record, record
from lmcache_core.app.plugins.plugin_row import PluginRow
from lmcache_core.app.plugins.plugin_settings import LoadedGroup, flag_of
from lmcache_core.app.setting_text import default_text, limits, type_name
from lmcache_core.contracts.offer import Offer

_UNITS: Final = {
    "gb": "GiB",
    "mb": "MiB",
    "kb": "KiB",
    "bytes": "bytes",
    "seconds": "seconds",
    "ms": "milliseconds",
    "ratio": "share",
    "percent": "percent",
    "tokens": "tokens",
    "chunks": "chunks",
}
"""The last word of a setting's name is its unit."""


def offer_text(plugins: LoadedPlugins, row: PluginRow, offered: Offered) -> str:
    """What it is, how it is called on a command line, and a table of its settings."""
    offer, kind = offered.offer, offered.kind
    lines = [f"{kind}:{offer.name}  {offer.summary}"]
    facts = [
        ("plugin", f"{row.candidate.name} ({row.candidate.owner}), {row.status}"),
        ("active", "by itself" if offer.default else "when it is named"),
        ("capabilities", _abilities(offer)),
        ("opens with", offer.open),
    ]
    try:
        model = plugins.model(kind, offer.name)
    except LMCacheError as error:
        return "\n".join([*lines, *_indented([*facts, ("unusable", str(error))])])
    lines += _indented([*facts, ("example", example_line(kind, offer, model))])
    if model is None:
        return "\n".join([*lines, "", "  It takes no settings."])
    about = " ".join((model.__doc__ or "").split())
    table = text_table(
        [("SETTING", "TYPE", "REQUIRED", "DEFAULT", "UNIT, LIMITS", "DESCRIPTION"), *_setting_rows(model)]
    )
    return "\n".join([*lines, "", *([f"  {about}"] if about else []), *(f"  {line}" for line in table)])


def _abilities(offer: Offer) -> str:
    if offer.wraps:
        return "those of the adapter inside"
    always = capability_words(offer.capabilities) or "-"
    return (
        f"{always} (with some settings: {words})"
        if (words := capability_words(offer.optional_capabilities))
        else always
    )


def plugin_text(plugins: LoadedPlugins, row: PluginRow) -> str:
    """A plugin as a whole, and everything that it offers."""
    about = row.candidate
    facts = [
        ("distribution", about.owner),
        ("origin", about.origin),
        ("status", row.status),
        ("module", about.module),
        *[("set up in", f"{row.setup_ms:.1f} ms") for _ in [0] if row.setup_ms is not None],
        *[("error", row.error) for _ in [0] if row.error],
        *[("remedy", row.remedy) for _ in [0] if row.remedy],
        *[("conflict", line) for line in row.conflicts],
    ]
    parts = ["\n".join([f"plugin {about.name}", *_indented(facts)])]
    if row.traceback:
        parts.append(row.traceback.rstrip())
    parts += [_group_text(group) for group in plugins.setting_groups() if group.plugin == about]
    parts += [offer_text(plugins, row, offered) for offered in row.offers]
    return "\n\n".join(parts)


def _group_text(group: LoadedGroup) -> str:
    """Settings of the server that the plugin brings."""
    head = ("FLAG", "TYPE", "DEFAULT", "UNIT, LIMITS", "DESCRIPTION")
    rows = [(flag_of(name, group.model.model_fields[name]), *cells) for name, *cells in _setting_rows(group.model)]
    table = text_table([head, *((flag, kind, *rest) for flag, kind, _, *rest in rows)])
    return "\n".join([f"settings of the server: {group.title}", "", *(f"  {line}" for line in table)])


def offer_json(plugins: LoadedPlugins, row: PluginRow, offered: Offered) -> dict[str, Any]:
    """As in `lmcache plugins list --json`, with the plugin's own record, an example and the JSON schema of its settings."""
    owner = record(row, *missing_modules([row]))
    del owner["offers"]
    return _offer_json(plugins, owner, offered)


def _offer_json(plugins: LoadedPlugins, owner: Mapping[str, Any], offered: Offered) -> dict[str, Any]:
    about: dict[str, Any] = {**offer_record(offered), "plugin": owner, "error": None, "example": None, "schema": None}
    try:
        model = plugins.model(offered.kind, offered.offer.name)
    except LMCacheError as error:
        return {**about, "error": str(error)}
    example = example_line(offered.kind, offered.offer, model)
    return {**about, "example": example, "schema": model.model_json_schema() if model else None}


def plugin_json(plugins: LoadedPlugins, row: PluginRow) -> dict[str, Any]:
    owner = record(row, *missing_modules([row]))
    del owner["offers"]
    settings = [
        {"title": group.title, "schema": group.model.model_json_schema()}
        for group in plugins.setting_groups()
        if group.plugin == row.candidate
    ]
    return {**owner, "settings": settings, "offers": [_offer_json(plugins, owner, offered) for offered in row.offers]}


def schema_json(plugins: LoadedPlugins, offered: Offered) -> str:
    """The JSON schema of its settings.  Raises ConfigError where it takes none."""
    model = plugins.model(offered.kind, offered.offer.name)
    if model is None:
        raise ConfigError(f"{offered.kind.label} '{offered.offer.name}' takes no settings, so that there is no schema")
    return json.dumps(model.model_json_schema(), indent=2)


def _setting_rows(model: type[BaseModel], within: str = "") -> Iterator[tuple[str, ...]]:
    """One row for each field; those of an object inside it follow, with dots in their names."""
    for name, field in model.model_fields.items():
        required, default = ("yes", "-") if field.is_required() else ("no", default_text(field) or "-")
        unit = _UNITS.get(name.rpartition("_")[2])
        bounds = ", ".join(filter(None, (unit, *limits(field)))) or "-"
        yield f"{within}{name}", type_name(field.annotation), required, default, bounds, field.description or "-"
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from _setting_rows(kind, f"{within}{name}.")


def _indented(facts: list[tuple[str, str]]) -> list[str]:
    width = max(len(name) for name, _ in facts)
    return [f"  {name:<{width}}  {value}" for name, value in facts]
