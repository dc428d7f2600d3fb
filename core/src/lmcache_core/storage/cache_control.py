"""What an operator may do to L1: look at it, drop from it, load into it, and reference what is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from lmcache_client.errors import ConfigError
from lmcache_core.contracts.cache_control import AddressedChunks, LoadedChunks, PinOwner, References
from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.policies import RequestFacts
from lmcache_core.contracts.storage import Shard, StoredSpace
from lmcache_core.controllers.prefetch import PrefetchController
from lmcache_core.controllers.prefetch_request import Prefetch, PrefetchRow, PrefixMatch, match_of
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.leases import Owner, OwnerKind
from lmcache_core.model.keys import KeySpace
from lmcache_core.model.object_header import HEADER_BYTES, digest
from lmcache_core.storage.lookups import hold_shard
from lmcache_core.storage.manager import StorageManager

_READER: Final = Owner(OwnerKind.CONTROLLER, "checksums")


class OperatorCache:
    """Implements `contracts.cache_control.CacheControl`."""

    def __init__(self, cache: L1Cache, storage: StorageManager, prefetch: PrefetchController, clock: Clock) -> None:
        self._cache, self._storage, self._prefetch, self._clock = cache, storage, prefetch, clock
        self.clear = storage.clear
        self.slot_bytes, self.slot_bytes_for = cache.slot_bytes, cache.slot_bytes_for
        self.views, self.lost = cache.contents.views, cache.contents.lost

    @property
    def slot_numbers(self) -> int:
        return self._cache.contents.slot_numbers

    def objects(self) -> int:
        counts = self._cache.contents.state_counts()
        return counts.total - counts.free

    def drop(self, space: KeySpace, chunk_hashes: Sequence[bytes], force: bool) -> tuple[int, int]:
        dropped, held, leaving = self._cache.contents.drop(space, chunk_hashes, force)
        self._storage.pins.release(leaving)
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

    @property
    def pin_max_bytes(self) -> int:
        return self._storage.pins.max_bytes

    def set_pin_owner(self, owner: PinOwner) -> None:
        if type(self._storage.pins) is not PinOwner:
            raise ConfigError("another service pins objects already; leave one of them out with --no-plugin")
        self._storage.pins = owner

    def references(self, name: str) -> PinReferences:
        return PinReferences(self._cache, name)

    def load(self, name: str) -> OperatorLoad:
        return OperatorLoad(name, self._cache, self._prefetch, self._clock)


class PinReferences:
    """Implements `contracts.cache_control.References`."""

    def __init__(self, cache: L1Cache, name: str) -> None:
        self._cache = cache
        self.lease = cache.leases.open(Owner(OwnerKind.PIN, name), None)

    @property
    def slots(self) -> Sequence[int]:
        return self.lease.slots

    def acquire(self, shard: Shard, chunk_hashes: Sequence[bytes]) -> list[int]:
        return hold_shard(self._cache, self.lease, shard, chunk_hashes)[0]

    def release(self, slots: Sequence[int]) -> None:
        self._cache.leases.release(self.lease, slots)

    def end(self) -> None:
        self._cache.leases.end(self.lease)


class OperatorLoad:
    """Implements `contracts.cache_control.ChunkLoad`."""

    def __init__(self, name: str, cache: L1Cache, prefetch: PrefetchController, clock: Clock) -> None:
        self._name = name
        self._cache, self._controller, self._clock = cache, prefetch, clock
        self._lease = cache.leases.open(Owner(OwnerKind.CONTROLLER, name), None)
        self._prefetch: Prefetch | None = None

    def begin(
        self, chunks: AddressedChunks, first_chunk: int, on_loaded: Callable[[LoadedChunks], None]
    ) -> LoadedChunks | None:
        hashes, started = chunks.chunk_hashes, self._clock.monotonic()
        rows = [PrefetchRow(*hold_shard(self._cache, self._lease, shard, hashes)) for shard in chunks.shards]
        flags = [row.flags() for row in rows]
        match = match_of(flags, [None] * len(rows), len(hashes), sparse=not chunks.is_prompt)

        def loaded(match: PrefixMatch, objects: int) -> LoadedChunks:
            return LoadedChunks(
                [row.slots[chunk] for row, needed in zip(rows, match.needed, strict=True) for chunk in needed],
                objects,
                match.answer if isinstance(match.answer, int) else len(hashes),
                self._clock.monotonic() - started >= self._controller.lookup_timeout_seconds,
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
            started=started,
            request=RequestFacts(started),
            sparse=not chunks.is_prompt,
            keeps=True,
            first_chunk=first_chunk,
        )
        self._controller.submit(self._prefetch)
        return None

    def share(self, references: References, slots: Sequence[int]) -> list[int]:
        assert isinstance(references, PinReferences)
        return self._cache.leases.share(references.lease, self._lease, slots)

    def end(self) -> None:
        prefetch = self._prefetch
        self._cache.leases.end(self._lease)
        if prefetch is not None:
            self._controller.look_again(prefetch)
