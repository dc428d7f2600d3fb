"""`lmcache quota get`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lmcache_core import Command, CommandContext
from lmcache_core.app.console.command_line import Parser
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_http.admin_api.quotas import SaltQuota
from lmcache_tools.admin_client import AdminClient, add_admin_flags
from lmcache_tools.output import output_of
from lmcache_tools.quota_page import add_salt, quota_table, salt_path


def parsers() -> list[Parser]:
    parser = Parser("lmcache quota get", "Show one salt's limit and use.")
    add_salt(parser)
    add_admin_flags(parser)
    return [parser]


def run(arguments: Sequence[str], context: CommandContext) -> ExitCode:
    given = parsers()[0].parse_all(arguments)
    client = AdminClient.of(given)
    answer = client.ask("GET", salt_path(given.salt))
    quota = client.read(answer, SaltQuota)
    output_of(given).show(answer, lambda: [quota_table([(quota.cache_salt, quota)])])
    return ExitCode.STOPPED


COMMAND: Final = Command(run, parsers)
