"""`lmcache plugins show`"""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_client.errors import ConfigError
from lmcache_core.app.console.command_line import Parser
from lmcache_core.app.console.command_output import CommandOutput, add_output_flags
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_core.app.plugins.offer_details import offer_json, offer_text, plugin_json, plugin_text, schema_json
from lmcache_core.app.plugins.offer_names import find, find_offer
from lmcache_core.app.plugins.plugin_selection import add_selection_flags, selection_of


def parsers() -> list[Parser]:
    parser = Parser(
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
        output.show_text(None, schema_json(plugins, offered))
        return ExitCode.STOPPED
    row, found = find(plugins, given.name)
    if output.is_json:
        output.show_text(offer_json(plugins, row, found) if found else plugin_json(plugins, row), "")
    else:
        output.show_text(None, offer_text(plugins, row, found) if found else plugin_text(plugins, row))
    return ExitCode.STOPPED
