"""`lmcache clear`"""

from __future__ import annotations

import json
from collections.abc import Sequence

from lmcache_core.admin.schemas import Cleared
from lmcache_core.app.admin_client import AdminClient, add_admin_flags
from lmcache_core.app.command_line import Parser
from lmcache_core.app.exit_code import ExitCode


def run(arguments: Sequence[str]) -> ExitCode:
    parser = Parser("lmcache clear", "Drop what a running server has in L1; what L2 has stays there.")
    parser.add_argument(
        "--force", action="store_true", help="what is held, too: it is hit no more, and leaves with its reader"
    )
    add_admin_flags(parser)
    given = parser.parse_all(arguments)
    client = AdminClient.of(given)
    answer = client.ask("POST", "/cache/clear", {"force": given.force})
    cleared = client.read(answer, Cleared).cleared
    left = f"; {cleared.objects_left} are there: in use, or stored since" if cleared.objects_left else ""
    print(json.dumps(answer, indent=2) if given.json else f"dropped {cleared.objects} objects of L1{left}")
    return ExitCode.STOPPED
