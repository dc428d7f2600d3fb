"""`lmcache config set`"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from lmcache_client.errors import ConfigError
from lmcache_core import Command, CommandContext, CommandParser
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_http.admin_api.changes import UNTIL_RESTART, ChangedSettings
from lmcache_tools.admin_client import AdminClient, add_admin_flags
from lmcache_tools.output import output_of
from lmcache_tools.page import Block, Line, Mood, Table

_PATIENCE_SECONDS: Final = 30.0
"""Longer than the server waits for a new eviction policy to learn what L1 holds."""


def parsers() -> list[CommandParser]:
    parser = CommandParser(
        "lmcache config set", "Change settings of a running server, all of them or none, until it is restarted."
    )
    parser.add_argument(
        "settings",
        nargs="+",
        metavar="NAME VALUE",
        help="such as eviction_ratio 0.1; a value is JSON, or a word; null is none",
    )
    add_admin_flags(parser)
    return [parser]


def run(arguments: Sequence[str], context: CommandContext) -> ExitCode:
    given = parsers()[0].parse_all(arguments)
    client, values = AdminClient.of(given, _PATIENCE_SECONDS), _values(given.settings)
    answer = client.ask("PATCH", "/settings", values)
    done = client.read(answer, ChangedSettings)
    output_of(given).show(answer, lambda: _page(done))
    return ExitCode.STOPPED


def _values(words: Sequence[str]) -> dict[str, Any]:
    if len(words) % 2:
        raise ConfigError(f"'{words[-1]}' has no value; give each setting as NAME VALUE")
    names = [name.removeprefix("--").replace("-", "_") for name in words[::2]]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"'{twice[0]}' is given twice")
    return dict(zip(names, map(_value, words[1::2]), strict=True))


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _page(done: ChangedSettings) -> list[Block]:
    if not done.changed:
        return [Line("nothing is different: these are the values that it has")]
    rows = [
        (each.name, json.dumps(each.before), json.dumps(each.after), "" if each.state == "applied" else each.state)
        for each in done.changed
    ]
    return [Table(("SETTING", "BEFORE", "AFTER", ""), rows), Line(UNTIL_RESTART, Mood.QUIET)]


COMMAND: Final = Command(run, parsers)
