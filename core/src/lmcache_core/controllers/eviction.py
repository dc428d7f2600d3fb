"""Eviction of L1: at a watermark, for stores that wait for free space, and for quotas."""

from __future__ import annotations

import select
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from lmcache_core.contracts.clock import Clock, SystemClock
from lmcache_core.contracts.events import ChunksEvicted, Publisher, QuotaReached
from lmcache_core.contracts.policies import EvictionDemand, EvictionPolicy
from lmcache_core.controllers.policy_guard import GuardedPolicy, PolicyChange
from lmcache_core.jobs.queues import Inbox
from lmcache_core.l1.allocator import Slab
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.index import EVICTED, QUOTA, Accessed, Inserted, LogEntry, Removed
from lmcache_core.l1.journal import PAUSE_SECONDS
from lmcache_core.l1.salts import SaltExcess
from lmcache_core.l1.slab_moves import choose, windows

_OPINION = 2
"""How much of the policy's list is looked at for each byte to move: the objects to leave next are in several slabs."""


class SlabMover:
    """Belongs to the eviction controller's thread."""

    def __init__(self, cache: L1Cache) -> None:
        self._cache = cache
        self._owed: Counter[int] = Counter()

    def shared(self, demand: Mapping[int, int]) -> dict[int, int]:
        """The part of a demand, in bytes by slot size, whose sizes share the arena with others."""
        return {size: wanted for size, wanted in demand.items() if self._cache.slabs.is_shared(size)}

    def bytes_by_size(self, slots: Sequence[int]) -> Counter[int]:
        """Bytes that evicting these would free, by slot size.  Slots that may not be evicted do not count."""
        freed: Counter[int] = Counter()
        for slab in self._slabs_of(dict.fromkeys(slots)):
            freed[slab.slot_bytes] += slab.slot_bytes
        return freed

    def make_space(
        self, demand: Mapping[int, int], freed: Mapping[int, int], coldest: Callable[[int], Sequence[int]]
    ) -> int:
        """Move slabs to the sizes of `demand`, of which eviction has just freed `freed`; both in bytes by slot size.
        `coldest(n)` names the slots that the policy would evict to free n bytes.  Returns the number of evicted objects."""
        evicted = 0
        for size, wanted in demand.items():
            slab_bytes = max(size, self._cache.slabs.slab_bytes)
            got = freed.get(size, 0)
            evicted += self._cache.slabs.continue_moves(size)
            # What could not be paid by now was owed to stores that are over: only this round's counts in full.
            owed = min(max(0, self._owed[size] + wanted - got), wanted + slab_bytes)
            due = owed - self._cache.slabs.moving_bytes(size)
            dry = not got and not self._cache.slabs.available_bytes(size)
            if due >= slab_bytes or (due > 0 and dry):
                moved, gone = self._move(size, due, coldest(_OPINION * max(due, slab_bytes)))
                evicted += gone
                owed = max(0, owed - moved)
            self._owed[size] = owed
        return evicted

    def still_dry(self, demand: Mapping[int, int], freed: Mapping[int, int]) -> dict[int, int]:
        """The sizes that have got nothing, because all that could have moved is held: they have to live on their own."""
        return {
            size: n for size, n in demand.items() if not freed.get(size) and not self._cache.slabs.available_bytes(size)
        }

    def _move(self, target: int, wanted_bytes: int, cold: Sequence[int]) -> tuple[int, int]:
        """(bytes that are free for the target now, objects that had to leave)."""
        before, evicted = self._cache.slabs.available_bytes(target), 0
        slabs, free = self._cache.slabs.pieces()
        fixed = {slab.number for slab in map(self._cache.slabs.find, self._cache.slabs.fixed_slots()) if slab}
        candidates = windows(slabs, free, target, self._slabs_of(cold), fixed)
        for window in choose(candidates, wanted_bytes, self._cache.may_evict):
            evicted += self._cache.slabs.move(window, target)
        return max(0, self._cache.slabs.available_bytes(target) - before), evicted

    def _slabs_of(self, slots: Iterable[int]) -> list[Slab]:
        """The slab of each of these that may go."""
        slabs = map(self._cache.slabs.find, filter(self._cache.may_evict, slots))
        return [slab for slab in slabs if slab is not None]


SLICE = 256
"""Victims freed under one lock acquisition, so that no request waits for a large eviction."""
STEP_OBJECTS = 4096
"""About how many victims the policy is asked for at once."""
RETRY_SECONDS = 0.25
"""How soon to try again when what could be freed is held."""
WAITED_FOR_SECONDS = 0.004
"""The same while a store waits for it."""
_METHODS: Final = {Inserted: "on_insert", Accessed: "on_access", Removed: "on_remove"}


class EvictionController:
    """Owns the eviction policy: notifies it of what happened, asks it for victims.  `run` is its thread's body."""

    def __init__(
        self,
        cache: L1Cache,
        policy: EvictionPolicy,
        watermark: float,
        ratio: float,
        events: Publisher,
        *,
        built_in: Callable[[], EvictionPolicy] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`built_in` makes the policy that takes over where `policy` fails again and again."""
        self._cache = cache
        self.guarded = GuardedPolicy("eviction policy", policy, clock or SystemClock(), built_in, self._rescue)
        """The policy and its failures."""
        self._watermark = watermark
        self._ratio = ratio
        self._events = events
        self._mover = SlabMover(cache)
        self._stuck: Sequence[SaltExcess] = ()
        """Salts beyond their quota whose objects are all held: an event was published, and eviction is retried."""
        self._wakes: Inbox[None] = Inbox()
        self._stop = False
        self._change: PolicyChange | None = None
        self._is_rescue = False
        """The change was not asked for: the policy has failed."""
        self.rounds = self.rounds_triggered = 0
        """Since the start; those in which room was to be made for the watermark or for stores that wait."""
        cache.call_on_pressure(self.wake, watermark)

    def limit(self, watermark: float, ratio: float) -> None:
        """These apply from the next round on, which comes at once.  Any thread."""
        self._watermark, self._ratio = watermark, ratio
        self._cache.call_on_pressure(self.wake, watermark)
        self.wake()

    def change_policy(self, policy: EvictionPolicy) -> PolicyChange:
        """Have another policy take over, as soon as it knows what there is.  Any thread, but one change at a time."""
        change = PolicyChange(self._cache, policy)
        self._change, self._is_rescue = change, False
        self.wake()
        return change

    @property
    def changing(self) -> bool:
        """True while an operator's change of the policy is under way."""
        return self._change is not None and not self._is_rescue

    def wake(self) -> None:
        """Start a round: a store waits for free space, or many accesses are logged.  Any thread."""
        self._wakes.wake()

    def run(self) -> None:
        poll = select.poll()
        poll.register(self._wakes, select.POLLIN)
        while not self._stop:
            poll.poll(self._pause_milliseconds())
            self._wakes.drain()
            self.cycle()

    def stop(self) -> None:
        self._stop = True
        self._wakes.wake()

    def _pause_milliseconds(self) -> float | None:
        """Until the next round, unless `wake` is called before.  Referenced slots can be freed a moment later, without a
        notification."""
        if self._change is not None:
            return 0
        if self._cache.stores_waiting:
            return WAITED_FOR_SECONDS * 1000
        return RETRY_SECONDS * 1000 if self._cache.used_ratio > self._watermark or self._cache.salts.any_over else None

    def cycle(self) -> None:
        """One round: catch up, then free what the watermark, waiting stores and quotas ask for."""
        self.rounds += 1
        self._notify(self._cache.take_access_log())
        demand = self._cache.take_demand()
        if self._change is not None and self._change.step(self.guarded.policy):
            self._end_change(self._change)
        self._evict_over_quota()
        goal = 0
        if self._cache.used_ratio > self._watermark:
            goal = int(self._cache.used_bytes * self._ratio)
        if not goal and not demand:
            return
        self.rounds_triggered += 1
        shared = self._mover.shared(demand)
        if shared:
            self._evict_across_sizes(shared)
        own = {size: wanted for size, wanted in demand.items() if size not in shared}
        self._evict_in_steps(goal - sum(shared.values()), own)

    def _evict_across_sizes(self, demand: Mapping[int, int]) -> None:
        """For stores whose sizes share the arena with others: what is coldest leaves, and slabs follow the demand."""
        victims = self._victims(EvictionDemand(sum(demand.values()), {}))
        freed = self._mover.bytes_by_size(victims)
        self._evict(victims)
        if self.guarded.policy.evicts:
            if moved := self._mover.make_space(demand, freed, lambda size: self._victims(EvictionDemand(size, {}))):
                self._publish(moved, 0)
            if dry := self._mover.still_dry(demand, freed):
                self._evict(self._victims(EvictionDemand(0, dry)))
        self._notify(self._cache.take_access_log())

    def _evict_in_steps(self, any_bytes: int, by_slot_bytes: Mapping[int, int]) -> None:
        """Evict a part at a time: an object that is hit meanwhile is spared, and an allocation that waits soon gets a slot."""
        step = max(1, self._cache.used_bytes // max(1, self._cache.objects)) * STEP_OBJECTS
        while any_bytes > 0 or by_slot_bytes:
            freed = self._evict(self._victims(EvictionDemand(min(any_bytes, step), by_slot_bytes)))
            self._notify(self._cache.take_access_log())
            if not freed:
                return
            any_bytes, by_slot_bytes = any_bytes - step, {}

    def _evict_over_quota(self) -> None:
        """Before anything else, so that what leaves here need not be taken from those who keep within theirs."""
        excess = self._cache.salts.take_excess()
        for salt in excess:
            if salt not in self._stuck:
                self._events.publish(QuotaReached(salt.salt, salt.limit_bytes, salt.used_bytes, salt.refused_bytes))
        freed = 0
        if excess:
            by_salt = {salt.salt: salt.due_bytes for salt in excess}
            freed = self._evict(self._victims(EvictionDemand(0, {}, by_salt)), QUOTA)
        self._stuck = () if freed else excess
        self._cache.salts.notify_waits()

    def _victims(self, demand: EvictionDemand) -> Sequence[int]:
        return self.guarded.call("victims", lambda policy: policy.victims(demand, self._cache.may_evict), ())

    def _rescue(self, built_in: EvictionPolicy) -> None:
        """The policy fails again and again: the built-in one learns what L1 holds and takes over."""
        if self._change is None:
            self._change, self._is_rescue = PolicyChange(self._cache, built_in), True

    def _evict(self, victims: Sequence[int], reason: str = EVICTED) -> int:
        """Returns how many bytes were freed."""
        total = 0
        for begin in range(0, len(victims), SLICE):
            if begin:
                time.sleep(PAUSE_SECONDS)
            batch = victims[begin : begin + SLICE]
            count, freed = self._cache.evict(batch, reason)
            if count:
                self._publish(count, freed)
            total += freed
        return total

    def _publish(self, chunks: int, freed: int) -> None:
        self._events.publish(ChunksEvicted(chunks, freed, self._cache.used_ratio))

    def _end_change(self, change: PolicyChange) -> None:
        if not change.failed:
            self.guarded.take(change.policy, because_it_failed=self._is_rescue)
        self._change = None
        change.finish()

    def _notify(self, entries: list[LogEntry]) -> None:
        """Empties the list on the way: freeing many entries in one go would stop every thread for as long."""
        if self._change is not None:
            self._change.record(entries)
        entries.reverse()
        while entries:
            entry = entries.pop()
            self.guarded.call(_METHODS[type(entry)], partial(_notify, entry), None)


def _notify(entry: LogEntry, policy: EvictionPolicy) -> None:
    match entry:
        case Inserted(slots, facts):
            policy.on_insert(slots, facts)
        case Accessed(slots, facts):
            policy.on_access(slots, facts)
        case Removed(slots):
            policy.on_remove(slots)
