"""`lmcache prefetch`"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

from lmcache_client.errors import ConfigError
from lmcache_core import Command, CommandContext, CommandParser
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_http.admin_api.chunks import PrefetchProgress, PrefetchSubmitted
from lmcache_tools.admin_client import AdminClient, add_admin_flags
from lmcache_tools.chunk_flags import add_chunk_flags, selection_of
from lmcache_tools.output import output_of
from lmcache_tools.page import Line
from lmcache_tools.waiting import waiting

_LOOK_SECONDS: Final = 0.2


def parsers() -> list[CommandParser]:
    parser = CommandParser(
        "lmcache prefetch", "Bring chunks from L2 into a running server's L1, and wait until they are there."
    )
    parser.add_argument("--pin", metavar="NAME", help="keep what comes in L1, under this name")
    parser.add_argument("--ttl", type=float, metavar="SECONDS", help="how long the pin stays (default: until removed)")
    parser.add_argument("--no-wait", action="store_true", help="only order it")
    add_chunk_flags(parser)
    add_admin_flags(parser)
    return [parser]


def run(arguments: Sequence[str], context: CommandContext) -> ExitCode:
    given = parsers()[0].parse_all(arguments)
    if given.ttl is not None and given.pin is None:
        raise ConfigError("--ttl is that of a pin: give --pin, too, or leave it out")
    client, output = AdminClient.of(given), output_of(given)
    pin = {} if given.pin is None else {"pin": True, "name": given.pin, "ttl_seconds": given.ttl}
    answer = client.ask("POST", "/cache/prefetches", {**selection_of(given), **pin})
    ordered = client.read(answer, PrefetchSubmitted)
    if ordered.request_id is None:
        output.show(answer, lambda: [Line("nothing to bring: less than one chunk was named")])
        return ExitCode.STOPPED
    if given.no_wait:
        output.show(answer, lambda: [Line(f"{ordered.request_id}: {ordered.chunks} chunks are ordered")])
        return ExitCode.STOPPED
    with waiting(f"bringing {ordered.chunks} chunks"):
        answer = _ended(client, ordered.request_id)
    done = client.read(answer, PrefetchProgress)
    lines = [f"{done.found_keys} of {done.total_keys} objects are in L1, {done.loaded_keys} of them came from L2"]
    if given.pin is not None:
        lines.append(f"{done.pinned_keys} of them are pinned{': ' + done.note if done.note else ''}")
    output.show(answer, lambda: [Line(text) for text in lines])
    return ExitCode.STOPPED


def _ended(client: AdminClient, request_id: str) -> dict[str, Any]:
    while True:
        answer = client.ask("GET", f"/cache/prefetches/{quote(request_id, safe='')}")
        if answer.get("status") != "pending":
            return answer
        time.sleep(_LOOK_SECONDS)


COMMAND: Final = Command(run, parsers)
