"""`lmcache plugins show`: what a name means, and one offer or plugin with its settings, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, get_args

from pydantic import BaseModel

from lmcache_client.errors import ConfigError, LMCacheError
from lmcache_core.app.commands.plugins_list import capability_words, offer_record, record
from lmcache_core.app.console.command_line import CommandParser, add_selection_flags, selection_of
from lmcache_core.app.console.command_output import CommandOutput, add_output_flags, text_table
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_core.app.plugins.catalogue import catalogue
from lmcache_core.app.plugins.discovery import PluginRow
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.offer_kind import Offered, OfferKind
from lmcache_core.app.setting_text import default_text, limits, type_name
from lmcache_core.app.settings import LoadedGroup, flag_of
from lmcache_core.contracts.offer import Offer
from lmcache_core.model.errors import PluginLoadError
from lmcache_core.model.spelling import mistyped


def parsers() -> list[CommandParser]:
    parser = CommandParser(
        "lmcache plugins show", "Show what a plugin or something that it offers is, and how to configure it."
    )
    parser.add_argument(
        "name", metavar="NAME", help="a plugin, an offer such as fs, or kind:name such as l2_adapter:fs"
    )
    parser.add_argument("--schema", action="store_true", help="print the JSON schema of its settings and nothing else")
    add_selection_flags(parser)
    add_output_flags(parser)
    return [parser]


def run(arguments: Sequence[str]) -> ExitCode:
    given = parsers()[0].parse_all(arguments)
    if given.format == "json" and given.schema:
        raise ConfigError("--json and --schema: give one of them; --json has the schema, too")
    plugins = selection_of(given).load_for_user()
    output = CommandOutput.of(given)
    if given.schema:
        offered = find_offer(plugins, given.name).offered
        assert offered is not None
        output.show(None, schema_json(plugins, offered))
        return ExitCode.STOPPED
    row, found = find(plugins, given.name)
    if output.is_json:
        output.show(offer_json(plugins, row, found) if found else plugin_json(plugins, row), "")
    else:
        output.show(None, offer_text(plugins, row, found) if found else plugin_text(plugins, row))
    return ExitCode.STOPPED


PLUGIN = "plugin"
"""The word before the colon where a plugin as a whole is meant."""


class Found(NamedTuple):
    """One offer and the plugin that has it, or a plugin alone."""

    row: PluginRow
    offered: Offered | None

    @property
    def name(self) -> str:
        """With its kind, so that it is unique."""
        if self.offered is None:
            return f"{PLUGIN}:{self.row.candidate.name}"
        return f"{self.offered.kind}:{self.offered.offer.name}"


def find(plugins: LoadedPlugins, text: str) -> Found:
    """The plugin or the offer of this name; without a kind, an offer of a kind of core's before those of other kinds, so
    that installing a distribution changes the meaning of no name.  Raises ConfigError where there is none or more than one,
    with what there is, and PluginError where two plugins have the name."""
    word, colon, name = text.partition(":")
    if not colon:
        offers = _offers_called(plugins, text)
        of_core = [each for each in offers if each.offered and each.offered.kind in tuple(OfferKind)]
        called = [*_plugins_called(plugins, text), *(of_core or offers)]
        return _only(plugins, text, called or _unusable_for(plugins, text))
    if word == PLUGIN:
        if called := _plugins_called(plugins, name):
            return _only(plugins, name, called)
        raise ConfigError(_no_plugin(plugins, name))
    if word not in plugins.kinds:
        raise ConfigError(f"'{word}' is not a kind; known: {PLUGIN}, {', '.join(plugins.kinds)}")
    offer = plugins.offer(word, name)
    offers = [each for each in _offers_called(plugins, name) if each.offered and each.offered.offer is offer]
    return offers[0]


def find_offer(plugins: LoadedPlugins, text: str) -> Found:
    """As `find`, but the name of a plugin selects the one thing that it offers.  Raises PluginLoadError for a plugin that
    cannot be used."""
    found = find(plugins, text)
    if found.offered is not None:
        return found
    if found.row.error is not None:
        raise PluginLoadError(found.row.candidate.name, str(found.row))
    offers = [Found(found.row, offered) for offered in found.row.offers]
    if len(offers) != 1:
        raise ConfigError(f"plugin '{text}' offers {_listed(offers) or 'nothing'}; name one of them")
    return find(plugins, offers[0].name)


def _plugins_called(plugins: LoadedPlugins, name: str) -> list[Found]:
    return [Found(row, None) for row in plugins.rows() if row.candidate.name == name]


def _offers_called(plugins: LoadedPlugins, name: str) -> list[Found]:
    return [Found(row, offered) for row in plugins.rows() for offered in row.offers if offered.offer.name == name]


def _unusable_for(plugins: LoadedPlugins, name: str) -> list[Found]:
    """The plugins that are called after an offer of this name, and cannot say what they offer."""
    names = [f"{kind.prefix}_{name}" for kind in OfferKind]
    return [Found(row, None) for row in plugins.rows() if row.unusable and row.candidate.name in names]


def _only(plugins: LoadedPlugins, text: str, found: Sequence[Found]) -> Found:
    """A plugin and its own only offer of the same name are one thing."""
    if not found:
        raise ConfigError(_nothing(plugins, text))
    owner = found[0]
    if owner.offered is None and not owner.row.unusable:
        others = [each for each in found[1:] if each.row is not owner.row and each.offered is not None]
        others += [each for each in found[1:] if each.row is owner.row and len(owner.row.offers) > 1]
    else:
        others = [] if owner.offered is None else [each for each in found[1:] if each.name != owner.name]
    if others:
        raise ConfigError(f"'{text}' is {_listed([owner, *others])}; name one of them")
    if owner.offered is not None:
        plugins.offer(owner.offered.kind, text)  # raises where two plugins offer it
    return owner


def _listed(found: Sequence[Found]) -> str:
    return " and ".join(each.name for each in found)


def _nothing(plugins: LoadedPlugins, text: str) -> str:
    known = catalogue()
    offers = {key.partition(":")[2]: distribution for key, distribution in known.offers.items()}
    if distribution := offers.get(text) or known.plugins.get(text):
        return f"'{text}' is not installed: pip install {distribution}"
    rows = plugins.rows()
    installed = [row.candidate.name for row in rows] + [each.offer.name for row in rows for each in row.offers]
    return f"no plugin, and nothing that one offers, is called '{text}'; {_meant(text, installed)}"


def _no_plugin(plugins: LoadedPlugins, name: str) -> str:
    if distribution := catalogue().plugins.get(name):
        return f"plugin '{name}' is not installed: pip install {distribution}"
    return f"no plugin is called '{name}'; {_meant(name, [row.candidate.name for row in plugins.rows()])}"


def _meant(name: str, installed: Sequence[str]) -> str:
    guess = mistyped(name, installed)
    return f"did you mean '{guess}'?" if guess else f"installed: {', '.join(dict.fromkeys(installed))}"


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
        ("help", f"lmcache {offer.name.replace('.', ' ')} --help")
        if kind is OfferKind.COMMAND
        else ("active", "by itself" if offer.default else "when it is named"),
        ("capabilities", _abilities(offer)),
        ("opens with", offer.open),
    ]
    try:
        model = plugins.model(kind, offer.name)
    except LMCacheError as error:
        return "\n".join([*lines, *_indented([*facts, ("unusable", str(error))])])
    lines += _indented(facts)
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
    words = capability_words(offer.optional_capabilities)
    return f"{always} (with some settings: {words})" if words else always


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
    """As in `lmcache plugins list --json`, with the plugin's own record and the JSON schema of its settings."""
    owner = record(row)
    del owner["offers"]
    about: dict[str, Any] = {**offer_record(offered), "plugin": owner, "error": None, "schema": None}
    try:
        model = plugins.model(offered.kind, offered.offer.name)
    except LMCacheError as error:
        return {**about, "error": str(error)}
    return {**about, "schema": model.model_json_schema() if model else None}


def plugin_json(plugins: LoadedPlugins, row: PluginRow) -> dict[str, Any]:
    owner = record(row)
    del owner["offers"]
    settings = [
        {"title": group.title, "schema": group.model.model_json_schema()}
        for group in plugins.setting_groups()
        if group.plugin == row.candidate
    ]
    return {**owner, "settings": settings, "offers": [offer_json(plugins, row, offered) for offered in row.offers]}


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
