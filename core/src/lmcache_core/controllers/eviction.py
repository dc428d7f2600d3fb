"""Makes room in L1: on a watermark, and when a store found none."""

from __future__ import annotations

import logging
import select
from collections.abc import Sequence

from lmcache_core.contracts.events import ChunksEvicted, Publisher
from lmcache_core.contracts.policies import EvictionDemand, EvictionPolicy
from lmcache_core.jobs.inbox import Inbox
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.notes import Accessed, Inserted, Note, Removed

logger = logging.getLogger(__name__)

SLICE = 256
"""Victims freed under one lock acquisition, so that no request waits for a large eviction."""
RETRY_SECONDS = 0.25
"""How soon to try again when what could be freed is held."""


class EvictionController:
    """Owns the eviction policy: tells it what happened, asks it for victims.  `run` is its thread's body."""

    def __init__(
        self, cache: L1Cache, policy: EvictionPolicy, watermark: float, ratio: float, events: Publisher
    ) -> None:
        self._cache = cache
        self._policy = policy
        self._watermark = watermark
        self._ratio = ratio
        self._events = events
        self._wakes: Inbox[None] = Inbox()
        self._stop = False
        cache.call_on_pressure(self.wake, watermark)

    def wake(self) -> None:
        """Somebody waits for room, or the policy has much to be told.  Any thread."""
        self._wakes.wake()

    def run(self) -> None:
        poll = select.poll()
        poll.register(self._wakes, select.POLLIN)
        while not self._stop:
            poll.poll(RETRY_SECONDS * 1000 if self._cache.used_ratio > self._watermark else None)
            self._wakes.drain()
            self.cycle()

    def stop(self) -> None:
        self._stop = True
        self._wakes.wake()

    def cycle(self) -> None:
        """One round: catch up, then free what the watermark and waiting stores ask for."""
        notes, demand = self._cache.take_notes()
        self._tell(notes)
        goal = 0
        census = self._cache.census()
        if self._cache.used_ratio > self._watermark:
            goal = int(census.used_bytes * self._ratio)
        if not goal and not demand:
            return
        self._evict(self._victims(EvictionDemand(goal, demand)))
        for slot_bytes in demand:
            if emptied := self._cache.empty_a_slab(slot_bytes):
                self._publish(emptied, 0)
        self._tell(self._cache.take_notes()[0])

    def _victims(self, demand: EvictionDemand) -> Sequence[int]:
        try:
            return self._policy.victims(demand, self._cache.may_evict)
        except (Exception, SystemExit):  # a plugin boundary
            logger.exception("eviction policy failed to name victims")
            return ()

    def _evict(self, victims: Sequence[int]) -> None:
        for begin in range(0, len(victims), SLICE):
            batch = victims[begin : begin + SLICE]
            count, freed = self._cache.evict(batch)
            if count:
                self._publish(count, freed)

    def _publish(self, chunks: int, freed: int) -> None:
        self._events.publish(ChunksEvicted(chunks, freed, self._cache.used_ratio))

    def _tell(self, notes: Sequence[Note]) -> None:
        for note in notes:
            try:
                self._tell_one(note)
            except (Exception, SystemExit):  # a plugin boundary: the notes that follow must not be lost with this one
                logger.exception("eviction policy failed to take note kind=%s", type(note).__name__)

    def _tell_one(self, note: Note) -> None:
        match note:
            case Inserted(slots, facts):
                self._policy.on_insert(slots, facts)
            case Accessed(slots, facts):
                self._policy.on_access(slots, facts)
            case Removed(slots):
                self._policy.on_remove(slots)
