"""Transfers of workers: the events and counts of their stores and retrieves, and a store's wait for free space."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Event

from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.events import (
    ChunksRetrieved,
    ChunksStored,
    ObjectsCame,
    ObjectsRead,
    Publisher,
    StoreRefused,
)
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.index import SpaceRecord
from lmcache_core.l1.leases import Lease
from lmcache_core.model.keys import KeySpace
from lmcache_core.model.object_header import HEADER_BYTES
from lmcache_core.storage.counters import Counters, tenant_of

NO_ROOM, QUOTA, TOO_MANY, STOPPING = "no_room", "quota", "too_many_transfers", "stopping"
MISSING, OVERWRITTEN = "missing", "overwritten"


class TransferEvents:
    """Any thread."""

    def __init__(self, cache: L1Cache, counters: Counters, clock: Clock, events: Publisher) -> None:
        self._cache = cache
        self._counters = counters
        self._clock = clock
        self._events = events

    # --- retrieves

    def acquired(
        self, space: KeySpace, payload_bytes: int, chunk_hashes: Sequence[bytes], first_chunk: int, request_id: str
    ) -> None:
        """A worker may read these now."""
        chunks = len(chunk_hashes)
        self._counters.retrieved(tenant_of(space.model_name, space.cache_salt), chunks, chunks * payload_bytes)
        if self._events.wants(ObjectsRead):
            self._events.publish(
                ObjectsRead(
                    space.model_name,
                    space.cache_salt,
                    space.kv_rank,
                    request_id,
                    first_chunk,
                    b"".join(chunk_hashes),
                )
            )

    def unread(self, space: KeySpace, chunks: int, reason: str) -> None:
        """It was not given what it wants to read."""
        self._counters.unread(tenant_of(space.model_name, space.cache_salt), chunks, reason)

    def released(self, record: SpaceRecord, chunks: int, first_chunk: int, request_id: str, begun: float) -> None:
        """It has read what it was given."""
        if not self._events.wants(ChunksRetrieved):
            return
        space, seconds = record.space, self._clock.monotonic() - begun
        self._events.publish(
            ChunksRetrieved(
                space.model_name,
                space.cache_salt,
                space.kv_rank,
                chunks,
                chunks * record.payload_bytes,
                request_id,
                first_chunk,
                seconds,
            )
        )

    # --- stores

    def refused(self, space: KeySpace, payload_bytes: int, chunks: int, reason: str) -> None:
        """Chunks were not taken."""
        self._counters.refused(tenant_of(space.model_name, space.cache_salt), chunks, chunks * payload_bytes, reason)
        self._events.publish(StoreRefused(space.model_name, space.cache_salt, chunks, reason))

    def late(self, space: KeySpace) -> None:
        """A worker committed what it holds no more."""
        self._counters.stored_late(tenant_of(space.model_name, space.cache_salt))

    def hashes_to_publish(self, slots: Sequence[int]) -> bytes:
        """Of referenced slots that are about to be published; empty where no subscriber wants them."""
        if not self._events.wants(ObjectsCame):
            return b""
        return b"".join([self._cache.key_of(slot).chunk_hash for slot in slots])

    def stored(
        self, record: SpaceRecord, chunks: int, first_chunk: int, request_id: str, begun: float, hashes: bytes
    ) -> None:
        """These were published.  `hashes` is what `hashes_to_publish` gave."""
        space, size = record.space, chunks * record.payload_bytes
        self._counters.stored(tenant_of(space.model_name, space.cache_salt), chunks, size)
        if self._events.wants(ChunksStored):
            self._events.publish(
                ChunksStored(
                    space.model_name,
                    space.cache_salt,
                    space.kv_rank,
                    chunks,
                    size,
                    request_id,
                    first_chunk,
                    self._clock.monotonic() - begun,
                )
            )
        if hashes:
            self._events.publish(
                ObjectsCame(
                    space.model_name,
                    space.cache_salt,
                    space.kv_rank,
                    HEADER_BYTES + record.payload_bytes,
                    "worker",
                    request_id,
                    first_chunk,
                    hashes,
                )
            )


WAIT_CHECK_SECONDS = 0.005
"""How often a wait asks whether it may go on; the longest that it keeps others from its thread."""


def reserve_with_wait(
    cache: L1Cache,
    lease: Lease,
    record: SpaceRecord,
    chunk_hashes: Sequence[bytes],
    indexes: Sequence[int],
    seconds: float,
    may_wait: Callable[[], bool],
) -> list[int]:
    """Go on with a reservation that has got `indexes` of these chunks so far, until nothing is missing, `seconds` are
    over, `may_wait` says no or the server stops.  What has been reserved meanwhile is not filled yet, and
    others may need it: so no wait is without an end.  Returns all indexes, in order."""
    got = list(indexes)
    deadline = time.monotonic() + seconds
    come = True
    while come:
        rest = chunk_hashes[got[-1] + 1 :] if got else chunk_hashes
        wait = cache.wait_for_space(lease, record, rest)
        if wait is None:
            break
        try:
            come = _is_free_in_time(wait.event, deadline, may_wait) and not wait.cancelled
        finally:
            cache.end_wait(wait)
        first = len(chunk_hashes) - len(rest)
        got += [first + index for index in cache.extend(lease, record, rest, ask_eviction=come)]
    return got


def _is_free_in_time(event: Event, deadline: float, may_wait: Callable[[], bool]) -> bool:
    while (left := deadline - time.monotonic()) > 0:
        if event.wait(min(left, WAIT_CHECK_SECONDS)):
            return True
        if not may_wait():
            return False
    return False
