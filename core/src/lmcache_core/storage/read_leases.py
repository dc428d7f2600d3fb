"""Leases of other servers: objects in L1 that they read over a network, by offset."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Sequence

from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.policies import AccessFacts
from lmcache_core.contracts.storage import LeasedObject
from lmcache_core.jobs.fault_log import FaultLog
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.leases import Lease, LeaseState, Owner, OwnerKind
from lmcache_core.model.keys import KeySpace, ObjectKey

logger = logging.getLogger(__name__)


class PeerLease:
    """Implements `contracts.storage.ReadLease`."""

    def __init__(self, cache: L1Cache, lease: Lease, slots: Sequence[int], clock: Clock) -> None:
        """`slots`: one for each key; -1: L1 does not have it; -2: it has, beyond `max_bytes`."""
        self._cache, self._lease, self._clock = cache, lease, clock
        self._slots = array("i", slots)
        self._size = sum(cache.slot_bytes(slot) for slot in slots if slot >= 0)

    @property
    def objects(self) -> list[LeasedObject | None]:
        with self._cache.leases.using(self._lease) as alive:
            slots = self._slots if alive else [-1] * len(self._slots)
            extents = [(0, 0) if slot < 0 else self._cache.buffer(slot)[1:3] for slot in slots]
        return [None if slot == -1 else LeasedObject(*each) for slot, each in zip(slots, extents, strict=True)]

    @property
    def size_bytes(self) -> int:
        return 0 if self._lease.state is LeaseState.ENDED else self._size

    def renew(self, seconds: float) -> bool:
        self._cache.leases.renew(self._lease, self._clock.monotonic() + seconds)
        return self._lease.state is LeaseState.ACTIVE

    def release(self, places: Sequence[int]) -> None:
        with self._cache.leases.using(self._lease) as alive:
            there = [place for place in set(places) if alive and self._slots[place] >= 0]
            slots = [self._slots[place] for place in there]
            self._size -= sum(map(self._cache.slot_bytes, slots))
            for place in there:
                self._slots[place] = -1
            self._cache.leases.release(
                self._lease, sorted(set(slots).difference(self._slots))
            )  # a key may be named twice

    def end(self) -> None:
        self._cache.leases.end(self._lease)


class ReadLeases:
    """Safe from any thread."""

    def __init__(self, cache: L1Cache, clock: Clock) -> None:
        self._cache, self._clock = cache, clock
        self._faults = FaultLog(logger, clock, "")

    def lease(self, borrower: str, keys: Sequence[ObjectKey], seconds: float, max_bytes: int) -> PeerLease:
        """As `Storage.lease_reads`."""
        cache = self._cache
        lease = cache.leases.open(Owner(OwnerKind.PEER, borrower), self._clock.monotonic() + seconds)
        try:
            slots = self._acquire(lease, keys)
            self._keep_within(lease, slots, max_bytes)
            with cache.leases.using(lease):  # its deadline may come meanwhile
                self._seal(lease, slots)
                cache.log_access([slot for slot in slots if slot >= 0], AccessFacts())
                lease.slots = array("i", lease.slots)  # nothing is added any more
                return PeerLease(cache, lease, slots, self._clock)
        except BaseException:
            cache.leases.end(lease)
            raise

    def _acquire(self, lease: Lease, keys: Sequence[ObjectKey]) -> list[int]:
        slots = [-1] * len(keys)
        by_space: dict[KeySpace, list[int]] = {}
        for place, key in enumerate(keys):
            by_space.setdefault(key.space, []).append(place)
        for space, places in by_space.items():
            hashes = [keys[place].chunk_hash for place in places]
            for place, slot in zip(places, self._cache.acquire_known(lease, space, hashes), strict=True):
                slots[place] = slot
        return slots

    def _keep_within(self, lease: Lease, slots: list[int], max_bytes: int) -> None:
        """Release what is beyond the limit."""
        used, beyond = 0, []
        for place, slot in enumerate(slots):
            if slot >= 0:
                used += self._cache.slot_bytes(slot)
                if used > max_bytes:
                    beyond.append(slot)
                    slots[place] = -2
        self._cache.leases.release(lease, beyond)

    def _seal(self, lease: Lease, slots: list[int]) -> None:
        """Release what is not as it was stored, or cannot be read."""
        bad: list[int] = []
        for place, slot in enumerate(slots):
            if slot < 0:
                continue
            try:
                changed = self._cache.checks is not None and bool(self._cache.checks.changed([slot]))
                if not changed:
                    self._cache.seal([slot], self._clock.wall_ns())
            except OSError as error:  # L1 is a file, and its disk fails
                self._faults.error(f"l1 lost an object that a peer asked for reason={error}")
                changed = True
            if changed:
                bad.append(slot)
                slots[place] = -1
        self._cache.leases.release(lease, bad)
