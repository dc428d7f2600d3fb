"""Objects on their way from L1 to L2: referenced in L1, and counted, until every adapter is done with them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from lmcache_core.contracts.counts import StoreCounts
from lmcache_core.contracts.l2_adapter import StoreItem
from lmcache_core.contracts.policies import RequestFacts
from lmcache_core.l1.cache import NO_REQUEST, L1Cache
from lmcache_core.l1.leases import Lease


class StoreBacklog:
    """Counts what was admitted twice over: until it was looked at, and until no adapter may store it any more.  Safe from
    any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards changes of the three below
        self.size_bytes = 0
        """Objects that go to several adapters count once.  What an adapter keeps beyond its answer does not count."""
        self.refused = 0
        """Objects that were not admitted."""
        self._unseen_bytes = 0
        self._idle = threading.Event()
        self._idle.set()

    def admit(self, count: int, size: int, unseen_max: int, *, hit: bool) -> bool:
        """Admit `count` objects of `size` bytes.  False where more than `unseen_max` bytes would wait to be planned.  Objects
        that were only `hit` are not counted as refused then, and are not admitted as the first either, if too large."""
        with self._lock:
            full = self._unseen_bytes + size > unseen_max and (hit or self._unseen_bytes > 0)
            if not full:
                self._unseen_bytes += size
                self.size_bytes += size
                self._idle.clear()
            elif not hit:
                self.refused += count
        return not full

    def seen(self, size: int) -> None:
        """`size` bytes were planned."""
        with self._lock:
            self._unseen_bytes -= size

    def shrink(self, size: int) -> None:
        """`size` bytes are not on their way any more."""
        with self._lock:
            self.size_bytes -= size
            if self.size_bytes == 0:
                self._idle.set()

    def wait(self, seconds: float) -> bool:
        """Until nothing is on its way.  False when something still is."""
        return self._idle.wait(seconds)


@dataclass(slots=True, eq=False)
class StoreUnit:
    """Held in L1 by `lease` until every adapter that it goes to is done with it."""

    slot: int
    lease: Lease
    item: StoreItem
    batch: int
    """Number of the batch that it came with; later ones have larger numbers."""
    depth: int
    """Its place in its prompt, in chunks; what lies in front of it is what makes it useful."""
    since: float
    """When it began to be on its way."""
    request_id: str = ""
    leave_l1: bool = False
    remaining: int = 1
    """Adapters that are not done with it, and one more while they are being chosen."""
    kept: int = 0
    """Adapters that have answered and still read it."""
    counted: bool = True
    """True while it is part of the backlog."""

    @property
    def size_bytes(self) -> int:
        return self.item.buffer.length


class Batch(msgspec.Struct, frozen=True):
    """Slots that became visible together, in prompt order, held by `lease`."""

    lease: Lease
    slots: tuple[int, ...]
    chunks: Sequence[int]
    """Position of each in its prompt."""
    size_bytes: int
    hit: bool = False
    """True: they have been there, and were hit."""
    request_id: str = ""
    request: RequestFacts = NO_REQUEST
    """Facts for policies."""


class StoreReferences:
    """Belongs to the store controller's thread."""

    def __init__(self, cache: L1Cache, backlog: StoreBacklog) -> None:
        self._cache = cache
        self._backlog = backlog
        self.busy: Counter[int] = Counter()
        """Units that are not finished, by slot: adapters read it."""

    def begin(self, slots: Iterable[int]) -> None:
        """Of new units, one for each of these slots."""
        self.busy.update(slots)

    def finish(self, units: Sequence[StoreUnit]) -> None:
        """One adapter is done with these; the last one ends their holds."""
        done: dict[Lease, list[int]] = {}
        size = 0
        leaving = []
        for unit in units:
            if unit.remaining <= 0:
                continue  # abandoned before
            unit.remaining -= 1
            if unit.remaining > unit.kept:
                continue
            size += self._uncounted(unit)
            if unit.remaining == 0:
                done.setdefault(unit.lease, []).append(unit.slot)
                self._release_slot(unit.slot)
                if unit.leave_l1:
                    leaving.append(unit.slot)
        if leaving:
            self._cache.drop_when_released(leaving)
        for lease, slots in done.items():
            self._cache.leases.release(lease, slots)
            if not lease.slots:
                self._cache.leases.end(lease)
        self._backlog.shrink(size)

    def keep(self, units: Sequence[StoreUnit]) -> None:
        """One adapter has answered for these and still reads them: they stay in quarantine until it releases them, which a stop
        of the server does not wait for."""
        size = 0
        for unit in units:
            self._cache.leases.quarantine(unit.lease)
            unit.kept += 1
            if unit.remaining == unit.kept:
                size += self._uncounted(unit)
        self._backlog.shrink(size)

    def abort(self, units: Sequence[StoreUnit]) -> int:
        """Adapters were being chosen for these, and will not be.  Their lease is the caller's to end.  Returns the bytes
        that are still in the backlog."""
        size = 0
        for unit in units:
            if unit.remaining > 0:
                unit.remaining = 0
                self._release_slot(unit.slot)
                size += self._uncounted(unit)
        return size

    @staticmethod
    def _uncounted(unit: StoreUnit) -> int:
        """The bytes by which the backlog is less without this."""
        if not unit.counted:
            return 0
        unit.counted = False
        return unit.size_bytes

    def _release_slot(self, slot: int) -> None:
        self.busy[slot] -= 1
        if not self.busy[slot]:
            del self.busy[slot]


class StoreCounters:
    """Written by the store controller's thread alone; any may read `now`, which is replaced as a whole."""

    def __init__(self) -> None:
        self.now = StoreCounts()
        self.waiting_since: float | None = None
        """When what waits longest began to; None while nothing waits."""

    @property
    def backlog_bytes(self) -> int:
        """Waiting and in flight now."""
        return self.now.waiting_bytes + self.now.in_flight_bytes

    def admit(self, objects: int, size: int, merged: int) -> None:
        """`objects` more, of `size` bytes, wait; `merged` others were on their way already."""
        self._add(admitted=objects, admitted_bytes=size, waiting=objects, waiting_bytes=size, merged=merged)

    def submit(self, objects: int, size: int) -> None:
        """`objects` of those that wait, of `size` bytes, were handed to the adapter."""
        self._add(waiting=-objects, waiting_bytes=-size, in_flight=objects, in_flight_bytes=size)

    def complete(self, stored: int, stored_bytes: int, failed: Counter[str], failed_bytes: Counter[str]) -> None:
        """Objects in flight have their outcome: stored, or failed, by outcome."""
        now, lost, lost_bytes = self.now, failed.total(), failed_bytes.total()
        self._add(
            {
                "failed_by_outcome": _sum(now.failed_by_outcome, failed),
                "failed_bytes_by_outcome": _sum(now.failed_bytes_by_outcome, failed_bytes),
            },
            in_flight=-stored - lost,
            in_flight_bytes=-stored_bytes - lost_bytes,
            stored=stored,
            stored_bytes=stored_bytes,
            failed=lost,
            failed_bytes=lost_bytes,
        )

    def drop(self, objects: int, size: int, reason: str) -> None:
        """`objects` of those that wait, of `size` bytes, were dropped."""
        now = self.now
        reasons = {
            "dropped_by_reason": _sum(now.dropped_by_reason, {reason: objects}),
            "dropped_bytes_by_reason": _sum(now.dropped_bytes_by_reason, {reason: size}),
        }
        self._add(reasons, waiting=-objects, waiting_bytes=-size, dropped=objects, dropped_bytes=size)

    def _add(self, by_name: Mapping[str, Any] = {}, **more: int) -> None:
        """`more` is added to these fields, and those of `by_name` are replaced: all at once."""
        now = self.now
        sums: dict[str, Any] = {name: getattr(now, name) + count for name, count in more.items()}
        self.now = now._replace(**sums, **by_name)


def _sum(before: Mapping[str, int], more: Mapping[str, int]) -> Mapping[str, int]:
    return {**before, **{name: before.get(name, 0) + count for name, count in more.items()}} if more else before
