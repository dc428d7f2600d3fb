"""`lmcache quota get`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lmcache_core import Command, CommandContext, CommandParser
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_http.admin_api.quotas import SaltQuota
from lmcache_tools.admin_client import AdminClient, add_admin_flags
from lmcache_tools.output import output_of
from lmcache_tools.quota_page import add_salt, coordinator_quota, is_coordinator, quota_table, salt_path


def parsers() -> list[CommandParser]:
    parser = CommandParser("lmcache quota get", "Show one salt's limit and use.")
    add_salt(parser)
    add_admin_flags(parser)
    return [parser]


def run(arguments: Sequence[str], context: CommandContext) -> ExitCode:
    given = parsers()[0].parse_all(arguments)
    client = AdminClient.of(given)
    path = salt_path(given.salt)
    if is_coordinator(client):
        answer = client.ask("GET", path.replace("/quota", "/l2/status", 1))
        quota = coordinator_quota(answer)
    else:
        answer = client.ask("GET", path)
        quota = client.read(answer, SaltQuota)
    output_of(given).show(answer, lambda: [quota_table([(quota.cache_salt, quota)])])
    return ExitCode.STOPPED


COMMAND: Final = Command(run, parsers)
