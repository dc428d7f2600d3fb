"""The command line of `lmcache simulate`; its mistakes are one readable line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from lmcache_core import CommandParser, ConfigError
from lmcache_policies.simulate.capacity import parse_bytes, parse_wishes
from lmcache_policies.simulate.trace_file import FORMS

T = TypeVar("T")
_ABOUT: Final = """Replay a trace through eviction policies and show what each would hit, beside what a clairvoyant would.

A trace is a file of JSON objects, one request per line, with "timestamp" (milliseconds) and "hash_ids" (the blocks of its
prompt), a log of lookups ("timestamp" in seconds, and "chunk_hashes"), as servers write it, or a file with one block per
line.  Each may be compressed with gzip."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Raises ConfigError for what is wrong; prints help and exits where that is asked for."""
    parser = CommandParser("lmcache simulate", _ABOUT)
    add = parser.add_argument
    add("trace", metavar="TRACE", help="the file to replay")
    add("--format", choices=FORMS, help="how the file is written (default: as its first line looks)")
    add(
        "--policy",
        action="append",
        default=[],
        metavar="NAME|JSON",
        help='a policy, or one with settings: {"type": "S3FIFO", "small_share": 0.2}; repeatable '
        "(default: all that are installed and evict)",
    )
    add("--all-policies", action="store_true", help="every installed policy, those that evict nothing included")
    add(
        "--capacity",
        default="2%,5%,10%,20%",
        metavar="LIST",
        help="sizes of the cache, with commas: 5%% of the distinct blocks, 5000 blocks, or 16GiB (default: %(default)s)",
    )
    add("--block-bytes", metavar="N", help="size of a block, such as 2MiB, for capacities in bytes")
    add("--block-tokens", type=_count, default=512, metavar="N", help="tokens in a block (default: %(default)s)")
    add("--evict-ratio", type=_ratio, default=0.0, metavar="R", help="free this share of the capacity at once")
    add("--max-requests", type=_count, metavar="N", help="read the first N requests only")
    add("--jobs", type=_count, metavar="N", help="processes (default: as many as there are processors)")
    add("--json", metavar="FILE", help="write everything there; - prints it instead of the table")
    add("--plot", metavar="FILE.png", help="draw hit rates against capacities; needs lmcache-policies[plot]")
    add("--no-progress", action="store_true", help="show nothing while it runs")
    given = parser.parse_all(arguments)
    given.capacity = _named("--capacity", parse_wishes, given.capacity)
    given.block_bytes = given.block_bytes and _named("--block-bytes", parse_bytes, given.block_bytes)
    return given


def _named(flag: str, parse_text: Callable[[str], T], text: str) -> T:
    try:
        return parse_text(text)
    except ConfigError as error:
        raise ConfigError(f"{flag}: {error}") from None


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number above 0")
    return int(text)


def _ratio(text: str) -> float:
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio <= 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a share from 0 to 1")
    return ratio
