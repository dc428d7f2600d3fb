"""`lmcache quota set`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lmcache_client.errors import ConfigError
from lmcache_core import Command, CommandContext, CommandParser
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_http.admin_api.quotas import LIMIT_GB_MAX, QuotaWasSet
from lmcache_tools.admin_client import AdminClient, add_admin_flags
from lmcache_tools.output import output_of
from lmcache_tools.page import Line
from lmcache_tools.quota_page import add_salt, gibibytes, is_coordinator, salt_path, where


def parsers() -> list[CommandParser]:
    parser = CommandParser("lmcache quota set", "Limit what a cache salt may use of L1, or of shared L2.")
    add_salt(parser)
    parser.add_argument(
        "--limit-gb", type=float, required=True, metavar="N", help="GiB that it may use; 0: it is not cached"
    )
    add_admin_flags(parser)
    return [parser]


def run(arguments: Sequence[str], context: CommandContext) -> ExitCode:
    given = parsers()[0].parse_all(arguments)
    client, path = AdminClient.of(given), salt_path(given.salt)
    if not 0 <= given.limit_gb <= LIMIT_GB_MAX:
        raise ConfigError(f"--limit-gb {given.limit_gb:g}: expected a number of GiB from 0 to {LIMIT_GB_MAX:.0f}")
    of_fleet = is_coordinator(client)
    answer = client.ask("PUT", f"/l2{path}" if of_fleet else path, {"limit_gb": given.limit_gb})
    done = client.read(answer, QuotaWasSet)
    text = f"'{done.cache_salt}' may use {gibibytes(done.limit_gb)} GiB of {where(of_fleet)}"
    output_of(given).show(answer, lambda: [Line(text)])
    return ExitCode.STOPPED


COMMAND: Final = Command(run, parsers)
