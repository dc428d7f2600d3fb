"""`lmcache pins add`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lmcache_core import Command, CommandContext, CommandParser
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_http.admin_api.chunks import ChunksPinned
from lmcache_tools.admin_client import AdminClient, add_admin_flags
from lmcache_tools.chunk_flags import add_chunk_flags, selection_of
from lmcache_tools.output import output_of
from lmcache_tools.page import Line


def parsers() -> list[CommandParser]:
    parser = CommandParser("lmcache pins add", "Keep what a running server has of these chunks in its L1.")
    parser.add_argument("name", help="the pin's name; one that is in use is added to")
    parser.add_argument("--ttl", type=float, metavar="SECONDS", help="how long (default: until it is removed)")
    add_chunk_flags(parser)
    add_admin_flags(parser)
    return [parser]


def run(arguments: Sequence[str], context: CommandContext) -> ExitCode:
    given = parsers()[0].parse_all(arguments)
    client = AdminClient.of(given)
    answer = client.ask("POST", "/cache/pin", {**selection_of(given), "name": given.name, "ttl_seconds": given.ttl})
    pinned = client.read(answer, ChunksPinned)
    text = f"pin '{pinned.name}': {pinned.chunks} of {pinned.total_chunks} chunks are pinned whole, {pinned.objects} objects"
    output_of(given).show(answer, lambda: [Line(text)])
    return ExitCode.STOPPED


COMMAND: Final = Command(run, parsers)
