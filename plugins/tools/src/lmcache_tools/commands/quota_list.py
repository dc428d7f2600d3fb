"""`lmcache quota list`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lmcache_core import Command, CommandContext, CommandParser
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_http.admin_api.quotas import SaltQuotas
from lmcache_tools.admin_client import AdminClient, add_admin_flags
from lmcache_tools.output import output_of
from lmcache_tools.page import Block, Line
from lmcache_tools.quota_page import coordinator_quotas, gibibytes, is_coordinator, quota_table


def parsers() -> list[CommandParser]:
    parser = CommandParser(
        "lmcache quota list", "Show every salt that has a limit or anything in L1, or in a fleet's shared L2."
    )
    add_admin_flags(parser)
    return [parser]


def run(arguments: Sequence[str], context: CommandContext) -> ExitCode:
    given = parsers()[0].parse_all(arguments)
    client = AdminClient.of(given)
    if is_coordinator(client):
        of_fleet = client.ask("GET", "/l2/status")
        output_of(given).show(of_fleet, lambda: [quota_table(coordinator_quotas(of_fleet))])
        return ExitCode.STOPPED
    answer = client.ask("GET", "/quota")
    quotas = client.read(answer, SaltQuotas)
    output_of(given).show(answer, lambda: _page(quotas))
    return ExitCode.STOPPED


def _page(quotas: SaltQuotas) -> list[Block]:
    table = quota_table(list(quotas.users.items()))
    if quotas.default_limit_gb is None:
        return [table]
    return [table, Line(f"salts without a quota of their own: {gibibytes(quotas.default_limit_gb)} GiB each")]


COMMAND: Final = Command(run, parsers)
