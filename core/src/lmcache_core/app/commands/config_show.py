"""`lmcache config show`"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

from lmcache_core.app.configuration import flag_of, read_settings, variable_of
from lmcache_core.app.console.admin_client import AdminClient, add_admin_flags
from lmcache_core.app.console.command_line import Parser
from lmcache_core.app.console.command_output import CommandOutput
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_core.app.console.loose_json import Loose
from lmcache_core.app.console.page import Cell, Line, Mood, Page, Table
from lmcache_core.app.console.setting_lines import as_flags, as_toml, hides_secrets
from lmcache_core.app.flags import ServerFlags, group_fields, server_flags
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.settings import GROUPS, ServerSettings
from lmcache_core.app.shown_settings import shown_settings

_TOKEN_FILE: Final = "http_token_file"
_DEFAULT: Final = "default"


def parsers() -> list[Parser]:
    parser = ServerFlags(
        "lmcache config show",
        "Show every setting, its value and where that comes from: what a server with these flags would have, in this "
        "environment; or, with --url, what a running one has.  Secrets are hidden.",
        without=(_TOKEN_FILE,),
    )
    shown = parser.add_argument_group("what is shown").add_mutually_exclusive_group()
    shown.add_argument("--as-flags", action="store_true", help="a command line that says the same; no defaults")
    shown.add_argument("--as-toml", action="store_true", help="a --config file that says the same; no defaults")
    shown.add_argument("--changed", action="store_true", help="only what is not the default")
    add_admin_flags(parser)
    parser.set_defaults(url=None, http_token_file=None)
    return [parser]


def run(arguments: Sequence[str]) -> ExitCode:
    given = parsers()[0].parse_all(arguments)
    rows = _offline(given) if given.url is None else _running(given)
    if given.as_flags or given.as_toml or given.changed:
        rows = [row for row in rows if row["source"] != _DEFAULT]
    output = CommandOutput.of(given)
    written = [(row["name"], row["value"]) for row in rows]
    if given.as_flags or given.as_toml:
        if hidden := hides_secrets(written):
            print(f"lmcache: warning: put back the secrets that are hidden in {', '.join(hidden)}", file=sys.stderr)
        text = "\n".join((as_flags if given.as_flags else as_toml)(written))
        output.show_text({"flags" if given.as_flags else "toml": text}, text)
    else:
        output.show({"settings": {row["name"]: _without_name(row) for row in rows}}, lambda: _page(rows))
    return ExitCode.STOPPED


def _offline(given: argparse.Namespace) -> list[dict[str, Any]]:
    flags = server_flags(given)
    if flags[_TOKEN_FILE] is None:
        del flags[_TOKEN_FILE]
    settings = read_settings(flags)
    plugins = load_plugins(settings.plugins, settings.no_plugins, safe_mode=settings.safe_mode)
    shown = {row.name: row for row in shown_settings(settings, plugins)}
    return [
        {
            "name": name,
            "value": shown[name].value,
            "source": shown[name].source,
            "given_by": shown[name].given_by,
            "default": shown[name].default,
        }
        for name in _names()
    ]


def _names() -> list[str]:
    """In the order of `lmcache server --help`."""
    return [name for group in GROUPS for name, _ in group_fields(group)]


def _running(given: argparse.Namespace) -> list[dict[str, Any]]:
    given.http_token_file = given.http_token_file or os.environ.get(variable_of(_TOKEN_FILE))
    said = Loose(AdminClient.of(given).ask("GET", "/config")) / "settings"
    named = said.items() or [((each / "name").text(), each) for each in said]
    order = {name: place for place, name in enumerate(_names())}
    named.sort(key=lambda item: order.get(item[0], len(order)))
    return [
        {
            "name": name,
            "value": (each / "value").value,
            "source": (each / "source").text() or "unknown",
            "given_by": (each / "given_by").text(),
            "default": (each / "default").value,
        }
        for name, each in named
    ]


def _without_name(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "name"}


def _page(rows: Sequence[dict[str, Any]]) -> Page:
    table: list[Sequence[Cell]] = []
    for row in rows:
        mood = Mood.QUIET if row["source"] == _DEFAULT else Mood.PLAIN
        field = ServerSettings.model_fields.get(row["name"])
        flag = flag_of(row["name"], field) if field else row["name"]
        table.append((Line(flag, mood), Line(_text(row["value"]), mood), Line(row["given_by"] or row["source"], mood)))
    return [Table(("SETTING", "VALUE", "FROM"), table)] if table else [Line("every setting has its default")]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if value in (None, "", [], {}):
        return "-"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
