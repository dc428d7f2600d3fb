"""What L1 holds, object by object: listed in pages, dropped by key, and what the bytes come to."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from lmcache_core.contracts.storage import StoredSpace
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.contents import SlotUse
from lmcache_core.l1.index import PAUSE_SECONDS
from lmcache_core.l1.leases import Owner, OwnerKind
from lmcache_core.model.keys import KeySpace, ObjectKey
from lmcache_core.model.object_header import HEADER_BYTES, digest
from lmcache_core.storage.addresses import AddressedChunks
from lmcache_core.storage.key_filter import KeyFilter
from lmcache_core.storage.pins import Pins

SLICE: Final = 64
"""Slots that are looked at, or objects that are dropped, under one lock acquisition."""
LOOKED_AT_MAX: Final = 65_536
"""Slots that are looked at for one page: where few of them match, the page is short, and the next one goes on."""

_READER: Final = Owner(OwnerKind.CONTROLLER, "checksums")


class L1Object(NamedTuple):
    """An object, as it was at one moment."""

    key: ObjectKey
    state: str
    """That of `SlotUse`, or `pinned`."""
    payload_bytes: int
    slot_bytes: int


class L1Page(NamedTuple):
    objects: tuple[L1Object, ...]
    next_slot: int | None
    """Where the next page begins; None: this is the last one."""


class L1Removal(NamedTuple):
    """`removed + missing + skipped` is what was asked for."""

    removed: int
    missing: int
    skipped: int
    """Stay, because they are held or pinned."""


class L1Objects:
    """Safe from any thread.

    The listing is in the order of slots.  An object stays in its slot as long as it is in L1, so that of those that are
    there from the first page to the last none is left out and none comes twice, whatever else comes and goes."""

    def __init__(self, cache: L1Cache, pins: Pins, pause: Callable[[float], None] = time.sleep) -> None:
        self._cache = cache
        self._pins = pins
        self._pause = pause

    def page(self, first_slot: int, limit: int, only: KeyFilter) -> L1Page:
        """Up to `limit` objects, which is at least one, from this slot on.  Fewer, and even none, do not mean that it is
        the last page."""
        found: list[L1Object] = []
        at, end = first_slot, self._cache.contents.slot_numbers
        while at < min(end, first_slot + LOOKED_AT_MAX):
            if at > first_slot:
                self._pause(PAUSE_SECONDS)
            for slot, key, use, payload_bytes, slot_bytes in self._cache.contents.views(at, at + SLICE):
                if not only.passes(key):
                    continue
                if len(found) == limit:
                    return L1Page(tuple(found), slot)
                state = "pinned" if use is SlotUse.HELD and self._pins.holds(slot) else use.value
                found.append(L1Object(key, state, payload_bytes, slot_bytes))
            at += SLICE
        return L1Page(tuple(found), at if at < end else None)

    def remove(self, keys: Sequence[ObjectKey], force: bool) -> L1Removal:
        """Drop these objects.  With `force` those that are held are found no more and leave with their last hold, and pins
        let go of them at once."""
        by_space: dict[KeySpace, list[bytes]] = {}
        for key in dict.fromkeys(keys):
            by_space.setdefault(key.space, []).append(key.chunk_hash)
        removed = missing = skipped = 0
        for space, hashes in by_space.items():
            for begin in range(0, len(hashes), SLICE):
                part = hashes[begin : begin + SLICE]
                dropped, held, leaving = self._cache.contents.drop(space, part, force)
                self._pins.let_go(leaving)
                removed, skipped = removed + dropped, skipped + held
                missing += len(part) - dropped - held
                self._pause(PAUSE_SECONDS)
        return L1Removal(removed, missing, skipped)

    def digests(self, chunks: AddressedChunks) -> list[list[bytes | None]]:
        """The xxh3-128 of each chunk's payload, by shard; None for those that L1 does not have.  Raises OSError where L1 is
        a file whose disk fails."""
        return [self._digests_of(shard.spaces, chunks.chunk_hashes) for shard in chunks.shards]

    def _digests_of(self, spaces: Sequence[StoredSpace], chunk_hashes: Sequence[bytes]) -> list[bytes | None]:
        return [self._digest(spaces, chunk_hash) for chunk_hash in chunk_hashes]

    def _digest(self, spaces: Sequence[StoredSpace], chunk_hash: bytes) -> bytes | None:
        lease = self._cache.leases.open(_READER, None)
        try:
            for space, payload_bytes in spaces:
                (slot,) = self._cache.leases.acquire(lease, self._cache.intern(space, payload_bytes), (chunk_hash,))
                if slot >= 0:
                    self._cache.fetch(slot)
                    return digest(self._cache.buffer(slot).view[HEADER_BYTES:])
            return None
        finally:
            self._cache.leases.end(lease)
