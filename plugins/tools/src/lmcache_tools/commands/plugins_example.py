"""`lmcache plugins example`: a command line for one offer that works when it is pasted."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final, get_args, get_origin

from pydantic import BaseModel, SecretBytes, SecretStr, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from lmcache_core import Command, CommandContext, CommandParser, Offer, PluginSettings
from lmcache_core.app.commands.plugins_show import find_offer
from lmcache_core.app.console.command_line import add_selection_flags, selection_of
from lmcache_core.app.console.command_output import CommandOutput, add_output_flags
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_core.app.setting_text import bounds

_SERVER: Final = "lmcache server --l1-size-gb 4"
_SOME_L2: Final = "--l2-adapter " + shlex.quote('{"type": "memory"}')
_POLICY_FLAGS: Final = {
    OfferKind.EVICTION_POLICY: "--eviction-policy",
    OfferKind.STORE_POLICY: f"{_SOME_L2} --l2-store-policy",
    OfferKind.PREFETCH_POLICY: f"{_SOME_L2} --l2-prefetch-policy",
}
_TEXTS: Final = (
    (("path", "dir", "directory", "folder", "root"), "/tmp/lmcache"),
    (("file",), "/tmp/lmcache/file"),
    (("url", "endpoint", "uri"), "http://127.0.0.1:9000"),
    (("host", "address", "hosts"), "127.0.0.1"),
    (("region",), "us-east-1"),
)
"""By the last words of a field's name."""
_NUMBERS: Final = ((("port",), 6379), (("gb", "mb", "bytes"), 4096), (("ratio", "share"), 0.5))
_BY_SETTINGS: Final = (OfferKind.SUBSCRIBER, OfferKind.HTTP_ROUTES, OfferKind.SERVICE, OfferKind.L1_MEMORY)
"""Kinds that `--offer-settings` asks for, even without a setting."""


def parsers() -> list[CommandParser]:
    parser = CommandParser(
        "lmcache plugins example",
        "Print a command line that uses what a plugin offers, with example values for the settings that it requires.",
    )
    parser.add_argument("name", metavar="NAME", help="an offer such as fs, or kind:name such as l2_adapter:fs")
    add_selection_flags(parser)
    add_output_flags(parser)
    return [parser]


def run(arguments: Sequence[str], context: CommandContext) -> ExitCode:
    given = parsers()[0].parse_all(arguments)
    plugins = selection_of(given).load_for_user()
    offered = find_offer(plugins, given.name).offered
    assert offered is not None
    line = example_line(offered.kind, offered.offer, plugins.model(offered.kind, offered.offer.name))
    CommandOutput.of(given).show({"example": line}, line)
    return ExitCode.STOPPED


def example_line(kind: OfferKind, offer: Offer, model: type[PluginSettings] | None) -> str:
    """What a user would type to have it in use, with example values for what is required."""
    if kind is OfferKind.COMMAND:
        return f"lmcache {offer.name.replace('.', ' ')} --help"
    values = example_settings(model) if model else {}
    typed = _quoted({"type": offer.name, **values})
    if kind is OfferKind.L2_ADAPTER:
        return f"{_SERVER} --l2-adapter {typed}"
    if kind is OfferKind.SERDE:
        named = {"type": offer.name, **values} if values else offer.name
        return f"{_SERVER} --l2-adapter {_quoted({'type': 'memory', 'serde': named})}"
    if flag := _POLICY_FLAGS.get(kind):
        return f"{_SERVER} {flag} {typed if values else offer.name}"
    line = _SERVER
    if kind is OfferKind.REQUEST_MODULE and not offer.default:
        is_transfer = offer.name in ("engine_driven", "lmcache_driven")
        line += f" --{'supported-transfer-mode' if is_transfer else 'engine-type'} {offer.name}"
    if values or (kind in _BY_SETTINGS and not offer.default):
        line += f" --offer-settings {_quoted({f'{kind}:{offer.name}': values})}"
    return line


def example_settings(model: type[BaseModel]) -> dict[str, Any]:
    """A value for each required field: its own first example, or one that its name and its type suggest.  Where the model
    wants more than that, such as one field of several, the first optional field that satisfies it."""
    values = {name: _value(name, field) for name, field in model.model_fields.items() if field.is_required()}
    optional = [(name, field) for name, field in model.model_fields.items() if not field.is_required()]
    if not _is_valid(model, values):
        for name, field in optional:
            more = {**values, name: _value(name, field)}
            if _is_valid(model, more):
                return more
    return values


def _value(name: str, field: FieldInfo) -> Any:
    if field.examples:
        return field.examples[0]
    guess = _of_type(name, field.annotation)
    for candidate in (guess, *_at_the_limits(field)):
        try:
            # the field alone, limits included; what ties several fields together is `example_settings`' part
            TypeAdapter(field.rebuild_annotation()).validate_python(candidate)
        except ValidationError:
            continue
        return candidate
    return guess


def _is_valid(model: type[BaseModel], values: dict[str, Any]) -> bool:
    try:
        model.model_validate(values)
    except ValidationError:
        return False
    return True


def _of_type(name: str, kind: Any) -> Any:
    word = name.rpartition("_")[2]
    if hasattr(kind, "__metadata__"):
        return _of_type(name, get_args(kind)[0])
    if kind in (SecretStr, SecretBytes):
        return "secret"
    if kind is bool:
        return True
    if kind in (int, float):
        return next((number for words, number in _NUMBERS if word in words), 1)
    if kind is Path:
        return next((text for words, text in _TEXTS if word in words), "/tmp/lmcache")
    if kind is str:
        return next((text for words, text in _TEXTS if word in words), "lmcache")
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(iter(kind)).value
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return example_settings(kind)
    options = [each for each in get_args(kind) if each is not type(None)]
    if get_origin(kind) is dict:
        return {}
    if get_origin(kind) in (tuple, list, set, frozenset):
        return [_of_type(name, options[0])]
    if options:  # a Literal's first word, or a union's first type
        return options[0] if isinstance(options[0], str | int) else _of_type(name, options[0])
    return "..."


def _at_the_limits(field: FieldInfo) -> list[Any]:
    numbers = [bound for _, bound in bounds(field)]
    return [*numbers, *(bound + 1 for bound in numbers), *(bound - 1 for bound in numbers)]


def _quoted(value: Any) -> str:
    return shlex.quote(json.dumps(value))


COMMAND: Final = Command(run, parsers)
