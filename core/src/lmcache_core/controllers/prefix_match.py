"""Prefix matches: the chunks of a prompt that every shard has, or may still get.

A shard is a run of flags, one per chunk: 1 where the chunk is there or can be had.  Prefixes are found by searching in
bytes, so that a long prompt costs no loop over its chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lmcache_core.model.results import Bitmap

ABSENT = -1
"""The slot number of a chunk that is not there."""

Flags = bytes | bytearray


class PrefixMatch(NamedTuple):
    """The chunks that every shard has."""

    answer: int | Bitmap
    """Chunks of the prefix; of a sparse lookup, the chunks themselves."""
    needed: tuple[Sequence[int], ...]
    """By shard: the chunks that have to stay for it, rising."""


def match_of(shards: Sequence[Flags], windows: Sequence[int | None], chunks: int, *, sparse: bool) -> PrefixMatch:
    if sparse:
        found = in_every(shards, chunks)
        return PrefixMatch(Bitmap(chunks, found), (found,) * len(shards))
    return prefix_of(longest_prefix(shards, windows, chunks) if shards else 0, windows)


def prefix_of(end: int, windows: Sequence[int | None]) -> PrefixMatch:
    return PrefixMatch(end, tuple([range(needed_from(end, window), end) for window in windows]))


def longest_prefix(shards: Sequence[Flags], windows: Sequence[int | None], limit: int) -> int:
    """The largest n of at most `limit`, so that every shard has what it needs of the first n chunks: all of them, or with
    a window the last `window` of them."""
    end = limit
    while True:
        before = end
        for flags, window in zip(shards, windows, strict=True):
            if window is None:
                gap = flags.find(0, 0, end)
                end = end if gap < 0 else gap
            else:
                # A gap within the window: every shorter prefix that ends behind it has it in its window, too.
                while (gap := flags.rfind(0, needed_from(end, window), end)) >= 0:
                    end = gap
        if end == before:
            return end


def needed_from(end: int, window: int | None) -> int:
    """The first chunk that a shard needs of a prefix of `end` chunks."""
    return 0 if window is None else max(0, end - window)


def in_every(shards: Sequence[Flags], chunks: int) -> list[int]:
    """The chunks that every shard has; none where there are no shards."""
    common = [True] * chunks if shards else [False] * chunks
    for flags in shards:
        common = [both and bool(flag) for both, flag in zip(common, flags, strict=True)]
    return [chunk for chunk, there in enumerate(common) if there]
