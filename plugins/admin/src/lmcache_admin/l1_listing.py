"""What L1 holds, object by object: listed in pages, dropped by key, and what the bytes come to."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from lmcache_admin.key_filter import KeyFilter
from lmcache_admin.pins import Pins
from lmcache_core import AddressedChunks, CacheControl, CachedObject, KeySpace, ObjectKey

SLICE: Final = 64
"""Slots that are looked at, or objects that are dropped, under one lock acquisition."""
LOOKED_AT_MAX: Final = 65_536
"""Slots that are looked at for one page: where few of them match, the page is short, and the next one goes on."""

PAUSE_SECONDS: Final = 0.0005
"""Between two slices, so that requests get the lock of L1."""


class L1Page(NamedTuple):
    objects: tuple[CachedObject, ...]
    next_slot: int | None
    """Where the next page begins; None: this is the last one."""


class L1Removal(NamedTuple):
    """`removed + missing + skipped` is what was asked for."""

    removed: int
    missing: int
    skipped: int
    """Stay, because they are held or pinned."""


class L1Listing:
    """Safe from any thread.

    The listing is in the order of slots.  An object stays in its slot as long as it is in L1, so that of those that are
    there from the first page to the last none is left out and none comes twice, whatever else comes and goes."""

    def __init__(self, cache: CacheControl, pins: Pins, pause: Callable[[float], None] = time.sleep) -> None:
        self._cache, self._pins = cache, pins
        self._pause = pause

    def page(self, first_slot: int, limit: int, only: KeyFilter) -> L1Page:
        """Up to `limit` objects, which is at least one, from this slot on.  Fewer, and even none, do not mean that it is
        the last page."""
        found: list[CachedObject] = []
        at, end = first_slot, self._cache.slot_numbers
        while at < min(end, first_slot + LOOKED_AT_MAX):
            if at > first_slot:
                self._pause(PAUSE_SECONDS)
            for each in self._cache.views(at, at + SLICE):
                if not only.passes(each.key):
                    continue
                if len(found) == limit:
                    return L1Page(tuple(found), each.slot)
                found.append(each._replace(state="pinned") if self._is_pinned(each) else each)
            at += SLICE
        return L1Page(tuple(found), at if at < end else None)

    def _is_pinned(self, found: CachedObject) -> bool:
        return found.state == "held" and self._pins.has(found.slot)

    def remove(self, keys: Sequence[ObjectKey], force: bool) -> L1Removal:
        """Drop these objects.  With `force` those that are held are found no more and leave with their last hold, and pins
        release them at once."""
        by_space: dict[KeySpace, list[bytes]] = {}
        for key in dict.fromkeys(keys):
            by_space.setdefault(key.space, []).append(key.chunk_hash)
        removed = missing = skipped = 0
        for space, hashes in by_space.items():
            for begin in range(0, len(hashes), SLICE):
                part = hashes[begin : begin + SLICE]
                dropped, held = self._cache.drop(space, part, force)
                removed, skipped = removed + dropped, skipped + held
                missing += len(part) - dropped - held
                self._pause(PAUSE_SECONDS)
        return L1Removal(removed, missing, skipped)

    def digests(self, chunks: AddressedChunks) -> list[list[bytes | None]]:
        """The xxh3-128 of each chunk's payload, by shard; None for those that L1 does not have.  Raises OSError where L1 is
        a file whose disk fails."""
        return [[self._cache.digest(shard.spaces, each) for each in chunks.chunk_hashes] for shard in chunks.shards]
