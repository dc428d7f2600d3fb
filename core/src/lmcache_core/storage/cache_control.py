"""What an operator may do to L1: look at it, drop from it, and load into it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from lmcache_core.contracts.cache_control import AddressedChunks, CachedObject, LoadedChunks
from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.policies import RequestFacts
from lmcache_core.contracts.storage import StoredSpace
from lmcache_core.controllers.prefetch import PrefetchController
from lmcache_core.controllers.prefetch_request import Prefetch, PrefetchRow, PrefixMatch, match_of
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.contents import SlotUse
from lmcache_core.l1.leases import Owner, OwnerKind
from lmcache_core.model.keys import KeySpace
from lmcache_core.model.object_header import HEADER_BYTES, digest
from lmcache_core.storage.lookups import hold_shard
from lmcache_core.storage.manager import StorageManager
from lmcache_core.storage.pins import Pin, Pins

_READER: Final = Owner(OwnerKind.CONTROLLER, "checksums")


class OperatorCache:
    """Implements `contracts.cache_control.CacheControl`."""

    def __init__(
        self, cache: L1Cache, storage: StorageManager, pins: Pins, prefetch: PrefetchController, clock: Clock
    ) -> None:
        self._cache, self._pins, self._prefetch, self._clock = cache, pins, prefetch, clock
        self.clear = storage.clear

    @property
    def slot_numbers(self) -> int:
        return self._cache.contents.slot_numbers

    def objects(self) -> int:
        counts = self._cache.contents.state_counts()
        return counts.total - counts.free

    def views(self, begin: int, end: int) -> list[CachedObject]:
        return [
            CachedObject(slot, key, self._state(slot, use), payload_bytes, slot_bytes)
            for slot, key, use, payload_bytes, slot_bytes in self._cache.contents.views(begin, end)
        ]

    def _state(self, slot: int, use: SlotUse) -> str:
        return "pinned" if use is SlotUse.HELD and self._pins.holds(slot) else use.value

    def drop(self, space: KeySpace, chunk_hashes: Sequence[bytes], force: bool) -> tuple[int, int]:
        dropped, held, leaving = self._cache.contents.drop(space, chunk_hashes, force)
        self._pins.let_go(leaving)
        return dropped, held

    def digest(self, spaces: Sequence[StoredSpace], chunk_hash: bytes) -> bytes | None:
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

    def load(self, name: str) -> OperatorLoad:
        return OperatorLoad(name, self._cache, self._pins, self._prefetch, self._clock)


class OperatorLoad:
    """Implements `contracts.cache_control.ChunkLoad`."""

    def __init__(self, name: str, cache: L1Cache, pins: Pins, prefetch: PrefetchController, clock: Clock) -> None:
        self._name = name
        self._cache, self._pins, self._controller, self._clock = cache, pins, prefetch, clock
        self._lease = cache.leases.open(Owner(OwnerKind.CONTROLLER, name), None)
        self._prefetch: Prefetch | None = None

    def begin(
        self, chunks: AddressedChunks, first_chunk: int, on_loaded: Callable[[LoadedChunks], None]
    ) -> LoadedChunks | None:
        hashes, begun = chunks.chunk_hashes, self._clock.monotonic()
        rows = [PrefetchRow(*hold_shard(self._cache, self._lease, shard, hashes)) for shard in chunks.shards]
        flags = [row.flags() for row in rows]
        match = match_of(flags, [None] * len(rows), len(hashes), sparse=not chunks.is_prompt)

        def loaded(match: PrefixMatch, objects: int) -> LoadedChunks:
            return LoadedChunks(
                [row.slots[chunk] for row, needed in zip(rows, match.needed, strict=True) for chunk in needed],
                objects,
                match.answer if isinstance(match.answer, int) else len(hashes),
                self._clock.monotonic() - begun >= self._controller.lookup_timeout_seconds,
            )

        def came(match: PrefixMatch, objects: int) -> None:
            self._prefetch = None
            on_loaded(loaded(match, objects))

        if all(len(needed) == len(hashes) for needed in match.needed) or not self._controller.active:
            return loaded(match, 0)
        self._prefetch = Prefetch(
            request_id=self._name,
            lease=self._lease,
            rows=rows,
            chunk_hashes=hashes,
            on_done=came,
            begun=begun,
            request=RequestFacts(begun),
            sparse=not chunks.is_prompt,
            keeps=True,
            first_chunk=first_chunk,
        )
        self._controller.submit(self._prefetch)
        return None

    def pin(self, pin: Pin, slots: Sequence[int]) -> int | None:
        return self._pins.share(pin, self._lease, slots)

    def end(self) -> None:
        prefetch = self._prefetch
        self._cache.leases.end(self._lease)
        if prefetch is not None:
            self._controller.look_again(prefetch)
