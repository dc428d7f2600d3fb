"""`lmcache config show`: settings as a table, as a command line, or as a `--config` file."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from lmcache_core import Command, CommandContext, CommandParser
from lmcache_core.app.configuration import ServerFlags, read_settings, setting_groups
from lmcache_core.app.console.command_line import command_selection, server_selection
from lmcache_core.app.console.command_output import CommandOutput, add_output_flags, text_table
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_core.app.masking import MASK
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.settings import flag_of
from lmcache_core.app.shown_settings import shown_settings
from lmcache_core.contracts.server_control import ShownSetting

_DEFAULT: Final = "default"
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


def parsers() -> list[CommandParser]:
    return [_parser(command_selection().load())]


def _parser(plugins: LoadedPlugins) -> ServerFlags:
    parser = ServerFlags(
        plugins,
        "lmcache config show",
        "Show every setting that a server with these flags would have in this environment, its value and where that comes "
        "from.  Secrets are hidden.",
    )
    add_view_flags(parser)
    return parser


def add_view_flags(parser: CommandParser) -> None:
    """What is shown of the settings, and where."""
    shown = parser.add_argument_group("what is shown").add_mutually_exclusive_group()
    shown.add_argument("--as-flags", action="store_true", help="a command line that says the same; no defaults")
    shown.add_argument("--as-toml", action="store_true", help="a --config file that says the same; no defaults")
    shown.add_argument("--changed", action="store_true", help="only what is not the default")
    add_output_flags(parser)


def run(arguments: Sequence[str], context: CommandContext) -> ExitCode:
    plugins = server_selection(arguments).load(strict=True)
    parser = _parser(plugins)
    given = parser.parse_all(arguments)
    settings = read_settings(parser.settings_in(given), plugins)
    return show_values(shown_settings(settings, plugins), given, plugins)


def show_values(rows: Sequence[ShownSetting], given: argparse.Namespace, plugins: LoadedPlugins) -> ExitCode:
    """By the flags of `add_view_flags`, in the order of `--help`; what no plugin here knows comes last."""
    groups = setting_groups(plugins)
    flags = {name: flag_of(name, field) for group in groups for name, field in group.model.model_fields.items()}
    order = {name: place for place, name in enumerate(flags)}
    rows = sorted(rows, key=lambda row: order.get(row.name, len(order)))
    if given.as_flags or given.as_toml or given.changed:
        rows = [row for row in rows if row.source != _DEFAULT]
    if given.as_flags or given.as_toml:
        written = [(row.name, row.value) for row in rows]
        if hidden := [name for name, value in written if MASK in json.dumps(value)]:
            print(f"lmcache: warning: put back the secrets that are hidden in {', '.join(hidden)}", file=sys.stderr)
        text = "\n".join(as_flags(written, flags) if given.as_flags else as_toml(written))
        CommandOutput.of(given).show({"flags" if given.as_flags else "toml": text}, text)
        return ExitCode.STOPPED
    table = [(flags.get(row.name, row.name), _text(row.value), row.given_by or row.source) for row in rows]
    lines = text_table([("SETTING", "VALUE", "FROM"), *table]) if table else ["every setting has its default"]
    answer = {"settings": {row.name: _record(row) for row in rows}}
    CommandOutput.of(given).show(answer, "\n".join(lines))
    return ExitCode.STOPPED


def _record(row: ShownSetting) -> dict[str, object]:
    return {name: value for name, value in row._asdict().items() if name != "name"}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if value in (None, "", [], {}):
        return "-"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def as_flags(settings: Iterable[tuple[str, Any]], flags: Mapping[str, str]) -> list[str]:
    """The lines of a command for a shell, by name and JSON value; `flags` by name.  A value that is none is left out, as no
    flag says so."""
    parts = [part for name, value in settings if name in flags for part in _flags(flags[name], value)]
    return [" \\\n  ".join(["lmcache server", *parts])]


def as_toml(settings: Iterable[tuple[str, Any]]) -> list[str]:
    """One line for each; what is none is a comment, as TOML has no word for it."""
    return [
        f"# {name} is not set" if value is None else f"{name} = {toml_value(value)}"
        for name, value in settings
        if name != "config"  # a file cannot name itself
    ]


def toml_value(value: Any) -> str:
    """A JSON value in TOML, on one line.  What is none inside of an object is left out."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        inner = [f"{_key(str(key))} = {toml_value(each)}" for key, each in value.items() if each is not None]
        return f"{{ {', '.join(inner)} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_value(each) for each in value if each is not None)}]"
    return repr(value)


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else toml_value(name)


def _flags(flag: str, value: Any) -> Iterator[str]:
    if value is None:
        return
    if isinstance(value, bool):
        yield flag if value else f"--no-{flag.removeprefix('--')}"
        return
    for each in value if isinstance(value, list | tuple) else (value,):
        text = each if isinstance(each, str) else json.dumps(each)
        yield f"{flag} {shlex.quote(text)}" if not text.startswith("-") else f"{flag}={shlex.quote(text)}"


COMMAND: Final = Command(run, parsers)
