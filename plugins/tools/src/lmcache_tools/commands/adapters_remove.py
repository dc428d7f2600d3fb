"""`lmcache adapters remove`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlencode

from lmcache_client.errors import ConfigError
from lmcache_core import Command, CommandContext, CommandParser
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_http.admin_api.changes import REMOVAL_SECONDS, REMOVAL_SECONDS_MAX, AdapterState
from lmcache_tools.adapter_page import adapter_page, adapter_path, add_name, add_wait, wait_while
from lmcache_tools.admin_client import AdminClient, add_admin_flags
from lmcache_tools.output import output_of


def parsers() -> list[CommandParser]:
    parser = CommandParser(
        "lmcache adapters remove",
        "Drain an L2 adapter and take it out of the server.  What its backend holds stays there.",
    )
    add_name(parser)
    parser.add_argument(
        "--deadline-seconds",
        type=float,
        default=REMOVAL_SECONDS,
        metavar="N",
        help=f"how long what waits and what is under way may take; the rest is abandoned (default: {REMOVAL_SECONDS:g})",
    )
    parser.add_argument("--force", action="store_true", help="wait for nothing: abandon what is under way")
    add_wait(parser)
    add_admin_flags(parser)
    return [parser]


def run(arguments: Sequence[str], context: CommandContext) -> ExitCode:
    given = parsers()[0].parse_all(arguments)
    if not 0 <= given.deadline_seconds <= REMOVAL_SECONDS_MAX:
        raise ConfigError(
            f"--deadline-seconds {given.deadline_seconds:g}: expected a number from 0 to {REMOVAL_SECONDS_MAX:.0f}"
        )
    client = AdminClient.of(given)
    query = urlencode({"deadline_seconds": given.deadline_seconds, "force": str(given.force).lower()})
    answer = client.ask("DELETE", f"{adapter_path(given.name)}?{query}")
    if given.wait:
        answer = wait_while(client, answer, lambda state: state.state not in ("removed", "lingering"))
    state = client.read(answer, AdapterState)
    gone = "was removed" if state.state == "removed" else "is being removed"
    output_of(given).show(answer, lambda: adapter_page(f"adapter '{state.name}' {gone}", state))
    return ExitCode.STOPPED


COMMAND: Final = Command(run, parsers)
