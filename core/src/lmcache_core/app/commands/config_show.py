"""`lmcache config show`"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

from lmcache_core.app.configuration import ServerFlags, read_settings, setting_groups, shown_names
from lmcache_core.app.console.admin_client import AdminClient, add_admin_flags
from lmcache_core.app.console.command_line import Parser
from lmcache_core.app.console.command_output import CommandOutput
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_core.app.console.loose_json import Loose
from lmcache_core.app.console.page import Cell, Line, Mood, Page, Table
from lmcache_core.app.console.setting_lines import as_flags, as_toml, hides_secrets
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.plugin_selection import command_selection, server_selection
from lmcache_core.app.setting_sources import variable_of
from lmcache_core.app.settings import flag_of
from lmcache_core.app.shown_settings import shown_settings

_TOKEN_FILE: Final = "http_token_file"
_DEFAULT: Final = "default"


def parsers() -> list[Parser]:
    return [_parser(command_selection().load())]


def _parser(plugins: LoadedPlugins) -> ServerFlags:
    parser = ServerFlags(
        plugins,
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
    return parser


def run(arguments: Sequence[str]) -> ExitCode:
    plugins = server_selection(arguments).load(strict=True)
    parser = _parser(plugins)
    given = parser.parse_all(arguments)
    rows = _offline(parser.settings_in(given), plugins) if given.url is None else _running(given, plugins)
    if given.as_flags or given.as_toml or given.changed:
        rows = [row for row in rows if row["source"] != _DEFAULT]
    output = CommandOutput.of(given)
    written = [(row["name"], row["value"]) for row in rows]
    if given.as_flags or given.as_toml:
        if hidden := hides_secrets(written):
            print(f"lmcache: warning: put back the secrets that are hidden in {', '.join(hidden)}", file=sys.stderr)
        text = "\n".join(as_flags(written, setting_groups(plugins)) if given.as_flags else as_toml(written))
        output.show_text({"flags" if given.as_flags else "toml": text}, text)
    else:
        output.show({"settings": {row["name"]: _without_name(row) for row in rows}}, lambda: _page(rows, plugins))
    return ExitCode.STOPPED


def _offline(flags: dict[str, Any], plugins: LoadedPlugins) -> list[dict[str, Any]]:
    if flags.get(_TOKEN_FILE) is None:
        flags.pop(_TOKEN_FILE, None)
    settings = read_settings(flags, plugins)
    shown = {row.name: row for row in shown_settings(settings, plugins)}
    return [
        {
            "name": name,
            "value": shown[name].value,
            "source": shown[name].source,
            "given_by": shown[name].given_by,
            "default": shown[name].default,
        }
        for name in shown_names(setting_groups(plugins))
    ]


def _running(given: argparse.Namespace, plugins: LoadedPlugins) -> list[dict[str, Any]]:
    given.http_token_file = given.http_token_file or os.environ.get(variable_of(_TOKEN_FILE))
    said = Loose(AdminClient.of(given).ask("GET", "/config")) / "settings"
    named = said.items() or [((each / "name").text(), each) for each in said]
    order = {name: place for place, name in enumerate(shown_names(setting_groups(plugins)))}
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


def _page(rows: Sequence[dict[str, Any]], plugins: LoadedPlugins) -> Page:
    groups = setting_groups(plugins)
    flags = {name: flag_of(name, field) for group in groups for name, field in group.model.model_fields.items()}
    table: list[Sequence[Cell]] = []
    for row in rows:
        mood = Mood.QUIET if row["source"] == _DEFAULT else Mood.PLAIN
        flag = flags.get(row["name"], row["name"])
        table.append((Line(flag, mood), Line(_text(row["value"]), mood), Line(row["given_by"] or row["source"], mood)))
    return [Table(("SETTING", "VALUE", "FROM"), table)] if table else [Line("every setting has its default")]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if value in (None, "", [], {}):
        return "-"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
