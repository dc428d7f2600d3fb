"""From one eviction policy to another, while the cache is in use.

The new policy is told of what is there in slices, in the order in which the old one would let it go: so it begins with
what the old one knew of recency or worth.  Until it knows everything the old one goes on; what happens meanwhile is told
to the new one behind the rest.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Final

from lmcache_core.contracts.policies import AccessFacts, EvictionDemand, EvictionPolicy, InsertFacts, RequestFacts
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.index import PAUSE_SECONDS
from lmcache_core.l1.logs import Accessed, Inserted, LogEntry, Removed

logger = logging.getLogger(__name__)

STEP_SLOTS: Final = 1024
"""Told in one go."""
_SLICE: Final = 128
"""Looked at under one lock acquisition."""
_EVERYTHING: Final = 1 << 62


class PolicyChange:
    """`wait` and `failed` are for any thread; everything else belongs to the eviction controller's."""

    def __init__(self, cache: L1Cache, policy: EvictionPolicy) -> None:
        self.policy: Final = policy
        self._cache = cache
        self._begun = False
        self._left: list[int] = []
        """Slots that the new policy has not been told of: what is to stay longest comes first, as it is taken from the
        end."""
        self._heard: list[LogEntry] = []
        self._told = bytearray()
        """By slot: 1 for what the new policy knows from here."""
        self._over = threading.Event()
        self.failed = False

    def wait(self, seconds: float) -> bool:
        """False when it is not over after this time."""
        return self._over.wait(seconds)

    def hear(self, notes: list[LogEntry]) -> None:
        """This has happened, and is told to the new policy in its turn."""
        if self._begun:
            self._heard += notes

    def step(self, old: EvictionPolicy) -> bool:
        """Go on for a while.  True when it is over: either the new policy knows what there is, as of the notes that were
        heard, or it has failed, and the old one has to stay."""
        try:
            if not self._begun:
                self._begin(old)
            elif self._left:
                self._tell_some()
            else:
                self._catch_up()
                return True
        except (Exception, SystemExit):  # a plugin boundary
            logger.exception("eviction policy failed to learn what is there, and the one before it goes on")
            self.failed = True
            return True
        return False

    def finish(self) -> None:
        """The controller goes on with whichever policy it is to be."""
        self._over.set()

    def _begin(self, old: EvictionPolicy) -> None:
        """Everything that is noted has been told to the old policy."""
        self._begun = True
        unnamed = bytearray([1]) * self._cache.contents.slot_numbers
        leaving_first = []
        for slot in _order_of(old):
            if 0 <= slot < len(unnamed) and unnamed[slot]:
                unnamed[slot] = 0
                leaving_first.append(slot)
        # What the old policy would never let go comes last, by slot, because nobody knows how old it is.
        self._left = [*leaving_first, *(slot for slot, flag in enumerate(unnamed) if flag)]
        self._left.reverse()

    def _tell_some(self) -> None:
        now = RequestFacts(seconds=time.monotonic())
        for _ in range(0, STEP_SLOTS, _SLICE):
            slots = self._left[-_SLICE:]
            slots.reverse()
            del self._left[-_SLICE:]
            for slot, facts in self._cache.contents.insert_facts(slots, now):
                self._insert([slot], facts)
            time.sleep(PAUSE_SECONDS)

    def _catch_up(self) -> None:
        for note in self._heard:
            match note:
                case Inserted(slots, facts):
                    # Read from the cache already, before it was known from a note.
                    if twice := [slot for slot in slots if slot < len(self._told) and self._told[slot]]:
                        self._remove(twice)
                    self._insert(slots, facts)
                case Accessed(slots, facts):
                    self._access(slots, facts)
                case Removed(slots):
                    self._remove(slots)
        self._heard = []

    def _insert(self, slots: list[int], facts: InsertFacts) -> None:
        self.policy.on_insert(slots, facts)
        if (missing := max(slots) + 1 - len(self._told)) > 0:
            self._told += bytes(missing)
        for slot in slots:
            self._told[slot] = 1

    def _access(self, slots: list[int], facts: AccessFacts) -> None:
        self.policy.on_access(slots, facts)

    def _remove(self, slots: list[int]) -> None:
        self.policy.on_remove(slots)
        for slot in slots:
            if slot < len(self._told):
                self._told[slot] = 0


def _order_of(policy: EvictionPolicy) -> Sequence[int]:
    """Everything that it knows and would evict, first things first; nothing where it fails, which may be why it goes."""
    try:
        return [int(slot) for slot in policy.victims(EvictionDemand(_EVERYTHING, {}), lambda slot: True)]
    except (Exception, SystemExit):  # a plugin boundary
        logger.exception("eviction policy that is replaced failed to say in which order it would evict")
        return ()
