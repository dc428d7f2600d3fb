"""`lmcache keys`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlencode

from lmcache_client.errors import ConfigError
from lmcache_core import Command, CommandContext, CommandParser
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_http.admin_api.objects import ObjectEntry, ObjectsPage
from lmcache_tools.admin_client import AdminClient, add_admin_flags
from lmcache_tools.output import output_of
from lmcache_tools.page import Block, Line, Table

_LIMIT: Final = 1000
_PAGE: Final = 5000
_HASH_DIGITS: Final = 16
"""Digits of a chunk hash that are shown to people; JSON has all of them."""


def parsers() -> list[CommandParser]:
    parser = CommandParser("lmcache keys", "List what a running server holds, object by object.")
    parser.add_argument("--tier", choices=("l1", "l2"), default="l1", help="memory or a storage backend (default: l1)")
    parser.add_argument("--adapter", help="which backend, where there are several")
    parser.add_argument("--model", help="objects of this model alone: its served name, or what an engine sends")
    parser.add_argument("--salt", help="objects of this cache salt alone; _default is the empty one")
    parser.add_argument(
        "--limit", type=int, default=_LIMIT, metavar="N", help=f"list at most N; 0: all (default: {_LIMIT})"
    )
    add_admin_flags(parser)
    return [parser]


def run(arguments: Sequence[str], context: CommandContext) -> ExitCode:
    given = parsers()[0].parse_all(arguments)
    if given.limit < 0:
        raise ConfigError(f"--limit {given.limit}: expected 0 or more")
    filters = {"tier": given.tier, "adapter": given.adapter, "model_name": given.model, "cache_salt": given.salt}
    asked = {name: value for name, value in filters.items() if value is not None}
    client, entries, token = AdminClient.of(given), list[ObjectEntry](), None
    while True:
        left = given.limit - len(entries) if given.limit else _PAGE
        query = {**asked, "page_size": min(_PAGE, left), **({"page_token": token} if token else {})}
        page = client.read(client.ask("GET", f"/cache/objects?{urlencode(query)}"), ObjectsPage)
        entries += page.entries
        token = page.next_page_token
        if token is None or len(entries) == given.limit:
            break
    answer: dict[str, Any] = {
        "tier": page.tier,
        "adapter": page.adapter,
        "complete": token is None,
        "entries": [entry.model_dump() for entry in entries],
    }
    output_of(given).show(answer, lambda: _page(entries, token is None))
    return ExitCode.STOPPED


def _page(entries: Sequence[ObjectEntry], complete: bool) -> list[Block]:
    rows = [
        (
            entry.chunk_hash[:_HASH_DIGITS],
            entry.model_name,
            " ".join(filter(None, (entry.identity, entry.variant))) or "-",
            f"{entry.worker_id}/{entry.world_size}",
            entry.cache_salt,
            entry.state or "-",
            "-" if entry.slot_bytes is None else str(entry.slot_bytes),
        )
        for entry in entries
    ]
    more = [] if complete else [Line("there are more; --limit 0 lists all of them")]
    return [Table(("CHUNK", "MODEL", "IDENTITY", "WORKER", "SALT", "STATE", "BYTES"), rows), *more]


COMMAND: Final = Command(run, parsers)
