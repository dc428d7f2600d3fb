"""`lmcache fleet`: what the coordinator of a fleet knows, and taking a server out of it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import quote

from lmcache_client.errors import LMCacheError
from lmcache_core import Command, CommandContext, CommandParser, pack_kv_rank
from lmcache_core.app.console.command_output import add_output_flags
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_tools.admin_client import AdminClient, read_token
from lmcache_tools.chunk_flags import add_chunk_flags, selection_of
from lmcache_tools.loose_json import Loose
from lmcache_tools.output import output_of
from lmcache_tools.page import Block, Cell, Line, Mood, Table
from lmcache_tools.quantities import count_text, seconds_text, size_text
from lmcache_tools.quota_page import coordinator_quotas, quota_table
from lmcache_tools.status_page import condition_blocks

_URL: Final = "http://127.0.0.1:9300"
_NONE: Final = "-"
_SHARED: Final = "(shared)"


def _parser(name: str, about: str) -> CommandParser:
    parser = CommandParser(f"lmcache fleet {name}", about)
    section = parser.add_argument_group("coordinator")
    of_members = os.environ.get("LMCACHE_COORDINATOR_URL", "").split(",")[0].strip()
    section.add_argument(
        "--url",
        default=of_members or _URL,
        help=f"its address (default: the first of LMCACHE_COORDINATOR_URL, else {_URL})",
    )
    section.add_argument(
        "--token-file",
        default=os.environ.get("LMCACHE_COORDINATOR_TOKEN_FILE"),
        metavar="FILE",
        help="file with its Bearer token (default: LMCACHE_COORDINATOR_TOKEN_FILE)",
    )
    add_output_flags(parser)
    return parser


def _client(given: argparse.Namespace) -> AdminClient:
    """A server's token, as of LMCACHE_HTTP_TOKEN, is not sent to a coordinator."""
    return AdminClient(given.url, read_token(given.token_file) if given.token_file else "")


def _shows(
    name: str,
    about: str,
    path: str,
    page: Callable[[dict[str, Any]], list[Block]],
    fields: Sequence[str] = (),
    code: Callable[[dict[str, Any]], ExitCode] = lambda answer: ExitCode.STOPPED,
) -> Command:
    """A command that asks once and shows the answer, or these fields of it."""

    def run(arguments: Sequence[str], context: CommandContext) -> ExitCode:
        given = _parser(name, about).parse_all(arguments)
        answer = _client(given).ask("GET", path)
        shown = {field: answer.get(field) for field in fields} if fields else answer
        output_of(given).show(shown, lambda: page(shown))
        return code(answer)

    return Command(run, lambda: [_parser(name, about)])


# --- status


def _status_page(answer: dict[str, Any]) -> list[Block]:
    data = Loose(answer)
    all_of_it = data / "overview"
    state, reason = (all_of_it / "state").text(), (all_of_it / "reason").text()
    quiet = (all_of_it / "quiet_seconds").number()
    leads = "this coordinator evicts" if (all_of_it / "leader").value is True else "this coordinator does not evict"
    rows: list[tuple[str, str]] = [
        ("servers", count_text((all_of_it / "instances").count())),
        ("servers dropped as silent", count_text((all_of_it / "dropped").count())),
        ("keys in the directory", count_text((all_of_it / "keys").count())),
        ("of them in shared L2", count_text((all_of_it / "shared_keys").count())),
        ("used of shared L2", size_text((all_of_it / "usage_bytes").count())),
        ("objects evicted", count_text((all_of_it / "deleted").count())),
        ("gaps in what servers sent", count_text((all_of_it / "gaps").count())),
        ("since the last change", _NONE if quiet is None else seconds_text(quiet)),
    ]
    return [
        Line("healthy", Mood.GOOD) if state == "healthy" else Line(f"{state.upper()}: {reason}", Mood.BAD),
        Line(f"up {seconds_text((all_of_it / 'up_seconds').count())}, {leads}", Mood.QUIET),
        Line(),
        Table(("FLEET", "COUNT"), rows),
        *condition_blocks(data),
    ]


def _status_code(answer: dict[str, Any]) -> ExitCode:
    """1 when the fleet is degraded."""
    is_healthy = (Loose(answer) / "overview" / "state").value == "healthy"
    return ExitCode.STOPPED if is_healthy else ExitCode.FAILED


STATUS: Final = _shows(
    "status",
    "Show how a fleet is, what it holds, and what is wrong.",
    "/dashboard/data",
    _status_page,
    ("overview", "conditions", "tenants"),
    _status_code,
)

# --- instances, keys, usage


def _instances_page(answer: dict[str, Any]) -> list[Block]:
    rows: list[Sequence[Cell]] = [
        (
            (each / "instance_id").text(),
            (each / "address").text() or _NONE,
            count_text((each / "workers").count()),
            count_text((each / "keys").count()),
            seconds_text((each / "silent_seconds").count()),
            Line(state := (each / "state").text(), Mood.GOOD if state == "live" else Mood.BAD),
        )
        for each in Loose(answer) / "instances"
    ]
    if not rows:
        return [Line("no server is registered", Mood.QUIET)]
    return [Table(("INSTANCE", "ADDRESS", "WORKERS", "KEYS", "SILENT FOR", "STATE"), rows)]


INSTANCES: Final = _shows(
    "instances", "Show the servers of a fleet.", "/dashboard/data", _instances_page, ("instances",)
)


def _keys_page(answer: dict[str, Any]) -> list[Block]:
    stats = Loose(answer)
    rows = [
        (
            (each / "instance_id").text() or _SHARED,
            (each / "worker").text(),
            (each / "source").text(),
            count_text((each / "keys").count()),
        )
        for each in stats / "keys_by_location"
    ]
    total = sum((each / "keys").count() for each in stats / "keys_by_location")
    return [
        Table(("INSTANCE", "WORKER", "WHERE", "KEYS"), rows),
        Line(f"{count_text(total)} placements; the directory takes {size_text((stats / 'size_bytes').count())}"),
    ]


KEYS: Final = _shows(
    "keys", "Show how many keys each server of a fleet has, and where.", "/directory/stats", _keys_page
)
USAGE: Final = _shows(
    "usage",
    "Show what each cache salt uses of shared L2, and its limit.",
    "/l2/status",
    lambda answer: [quota_table(coordinator_quotas(answer))],
)

# --- lookup


def _lookup_parser() -> CommandParser:
    parser = _parser("lookup", "Show which servers have the chunks of a prompt, and where.")
    add_chunk_flags(parser)
    return parser


def _run_lookup(arguments: Sequence[str], context: CommandContext) -> ExitCode:
    given = _lookup_parser().parse_all(arguments)
    asked = selection_of(given)
    if (hashes := asked.get("chunk_hashes")) is not None:
        ranks = [pack_kv_rank(given.world_size, rank) for rank in range(given.world_size)]
        shared = {"model_name": given.model, "cache_salt": given.salt}
        keys = [{**shared, "chunk_hash_hex": each, "kv_rank": rank} for each in hashes for rank in ranks]
        asked = {"keys": keys}
    answer = _client(given).ask("POST", "/directory/lookup", asked)
    output_of(given).show(answer, lambda: _lookup_page(Loose(answer)))
    return ExitCode.STOPPED


def _lookup_page(found: Loose) -> list[Block]:
    rows = [
        (
            (each / "key" / "chunk_hash_hex").text(),
            str(int((each / "key" / "kv_rank").count()) & 0xFF),
            (place / "instance_id").text() or _SHARED,
            (place / "backend").text(),
        )
        for each in found / "results"
        for place in each / "placements"
    ]
    chunks = count_text((found / "chunks").count())
    if not rows:
        return [Line(f"no server has any of {chunks} chunks", Mood.QUIET)]
    return [Table(("CHUNK", "SHARD", "INSTANCE", "WHERE"), rows), Line(f"of {chunks} chunks that were asked for")]


LOOKUP: Final = Command(_run_lookup, lambda: [_lookup_parser()])

# --- peers


_MEMBER_SECONDS: Final = 5.0


def _peers_parser() -> CommandParser:
    about = "Show what each server of a fleet has asked its peers for, and read from them.  Asks the admin API of each."
    parser = _parser("peers", about)
    what = "file with the Bearer token of the servers' admin APIs; every address that has registered is sent it"
    parser.add_argument("--member-token-file", metavar="FILE", help=what)
    return parser


def _run_peers(arguments: Sequence[str], context: CommandContext) -> ExitCode:
    """Exit code 1 where there are such servers, and none could be asked."""
    given = _peers_parser().parse_all(arguments)
    token = read_token(given.member_token_file, "--member-token-file") if given.member_token_file else ""
    listed = Loose(_client(given).ask("GET", "/instances")) / "instances"
    servers = [_asked(each, token) for each in listed if (each / "p2p_advertised_url").text()]
    output_of(given).show({"servers": servers}, lambda: _peers_page(servers))
    return ExitCode.FAILED if servers and all(each["error"] for each in servers) else ExitCode.STOPPED


def _asked(member: Loose, token: str) -> dict[str, Any]:
    ip, port = (member / "ip").text(), int((member / "http_port").count())
    found: dict[str, Any] = {"instance_id": (member / "instance_id").text(), "url": "", "error": None, "peers": {}}
    if not port:
        return {**found, "error": "it has no admin API"}
    found["url"] = f"http://[{ip}]:{port}" if ":" in ip else f"http://{ip}:{port}"
    try:
        status = AdminClient(found["url"], token, _MEMBER_SECONDS).ask("GET", "/status")
    except LMCacheError as error:
        return {**found, "error": str(error)}
    return {**found, "peers": (Loose(status) / "services" / "p2p" / "reader" / "peers").value or {}}


def _peers_page(servers: Sequence[dict[str, Any]]) -> list[Block]:
    counts = ("asked", "hit", "leased", "stale", "refused", "unanswered", "damaged")
    rows: list[Sequence[Cell]] = [
        (
            server["instance_id"],
            name,
            (peer / "channel").text() or _NONE,
            Line("yes", Mood.GOOD) if (peer / "open").value is True else Line("no", Mood.BAD),
            *(count_text((peer / each).count()) for each in counts),
            size_text((peer / "read_bytes").count()),
            seconds_text((peer / "read_seconds").count()),
        )
        for server in servers
        for name, peer in Loose(server["peers"]).items()
    ]
    head = ("SERVER", "PEER", "CHANNEL", "OPEN", *(each.upper() for each in counts), "BYTES", "SECONDS")
    lines = [
        Line(f"{each['instance_id']}: {each['error']}", Mood.DOUBTFUL)
        if each["error"]
        else Line(f"{each['instance_id']} has asked no peer yet", Mood.QUIET)
        for each in servers
        if not each["peers"]
    ]
    if not servers:
        lines = [Line("no server of this fleet reads from others; --p2p-advertise-url turns it on", Mood.QUIET)]
    return [*([Table(head, rows)] if rows else ()), *lines]


PEERS: Final = Command(_run_peers, lambda: [_peers_parser()])

# --- remove


def _remove_parser() -> CommandParser:
    about = "Take a server out of the fleet's directory; one that lives registers again with its next message."
    parser = _parser("remove", about)
    parser.add_argument("instance", metavar="INSTANCE", help="its --instance-id")
    return parser


def _run_remove(arguments: Sequence[str], context: CommandContext) -> ExitCode:
    given = _remove_parser().parse_all(arguments)
    answer = _client(given).ask("DELETE", f"/fleet/instances/{quote(given.instance, safe='')}")
    output_of(given).show(answer, lambda: [Line(f"'{given.instance}' is removed")])
    return ExitCode.STOPPED


REMOVE: Final = Command(_run_remove, lambda: [_remove_parser()])
