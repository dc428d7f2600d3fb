"""`lmcache quota delete`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lmcache_core import Command, CommandContext, CommandParser
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_http.admin_api.quotas import QuotaWasDeleted
from lmcache_tools.admin_client import AdminClient, add_admin_flags
from lmcache_tools.output import output_of
from lmcache_tools.page import Line
from lmcache_tools.quota_page import add_salt, is_coordinator, salt_path


def parsers() -> list[CommandParser]:
    parser = CommandParser(
        "lmcache quota delete", "Take a salt's limit away; the default one applies to it then, if there is one."
    )
    add_salt(parser)
    add_admin_flags(parser)
    return [parser]


def run(arguments: Sequence[str], context: CommandContext) -> ExitCode:
    given = parsers()[0].parse_all(arguments)
    client = AdminClient.of(given)
    path = salt_path(given.salt)
    answer = client.ask("DELETE", f"/l2{path}" if is_coordinator(client) else path)
    text = f"'{client.read(answer, QuotaWasDeleted).cache_salt}' has no quota of its own any more"
    output_of(given).show(answer, lambda: [Line(text)])
    return ExitCode.STOPPED


COMMAND: Final = Command(run, parsers)
