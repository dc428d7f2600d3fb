"""The queue of stores to one adapter: what waits, what is dropped, and what was handed over in jobs."""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from lmcache_core.contracts.counts import StoreView
from lmcache_core.contracts.policies import AdapterFacts
from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_core.controllers.store_units import StoreCounters, StoreUnit
from lmcache_core.l1.leases import Lease
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.results import Outcome


class DropRule(StrEnum):
    """Which waiting object is dropped when there are too many.  Within one batch it is always the one that lies deepest
    in its prompt: a prefix is of use without its end, and an end is of none without its prefix."""

    NEWEST = "newest"
    OLDEST = "oldest"
    DEEPEST = "deepest"


_RANK: dict[DropRule, Callable[[StoreUnit, int], tuple[int, int]]] = {
    DropRule.NEWEST: lambda unit, ticket: (-unit.batch, -ticket),
    DropRule.OLDEST: lambda unit, ticket: (unit.batch, -ticket),
    DropRule.DEEPEST: lambda unit, ticket: (-unit.depth, -ticket),
}


class WaitingStores:
    """First in, first out; `drop` takes out the victim by the rule.  One thread."""

    def __init__(self, rule: DropRule) -> None:
        self._rank = _RANK[rule]
        self._tickets = 0
        self._units: OrderedDict[int, StoreUnit] = OrderedDict()
        self._victims: list[tuple[tuple[int, int], int]] | None = None
        """A heap, with the tickets of units that are gone already in between.  None while nothing is dropped: then it would
        cost more than all the rest."""

    def follow(self, rule: DropRule) -> None:
        """From now on what is dropped is chosen by this rule."""
        self._rank = _RANK[rule]
        self._victims = None

    def __len__(self) -> int:
        return len(self._units)

    def __iter__(self) -> Iterator[StoreUnit]:
        return iter(self._units.values())

    @property
    def oldest(self) -> StoreUnit | None:
        """The one that has waited longest."""
        return next(iter(self._units.values()), None)

    def add(self, unit: StoreUnit) -> None:
        self._tickets += 1
        self._units[self._tickets] = unit
        if self._victims is None:
            return
        if len(self._victims) > 2 * len(self._units) + 64:
            self._victims = None
        else:
            heapq.heappush(self._victims, (self._rank(unit, self._tickets), self._tickets))

    def take(self) -> StoreUnit:
        """The one that has waited longest.  Raises KeyError when nothing waits."""
        return self._units.popitem(last=False)[1]

    def drop(self) -> StoreUnit:
        """The victim by the rule.  Raises IndexError when nothing waits."""
        if self._victims is None:
            self._victims = [(self._rank(unit, ticket), ticket) for ticket, unit in self._units.items()]
            heapq.heapify(self._victims)
        while True:
            _, ticket = heapq.heappop(self._victims)
            unit = self._units.pop(ticket, None)
            if unit is not None:
                return unit

    def withdraw(self, lease: Lease) -> list[StoreUnit]:
        """Take out everything that this lease holds."""
        gone = {ticket: unit for ticket, unit in self._units.items() if unit.lease is lease}
        for ticket in gone:
            del self._units[ticket]
        return list(gone.values())


HALF_LIFE_SECONDS: Final = 10.0


class Throughput:
    """Bytes per second over the time in which the backend had as much to do as it is ever given at once.

    What it did while it had less says nothing about how fast it is, so that time does not count.  Older time counts
    for less, by half per half-life, and a backend that has stopped becomes slower as one looks.  One thread."""

    def __init__(self, evidence_bytes: int, half_life_seconds: float = HALF_LIFE_SECONDS) -> None:
        """`evidence_bytes`: the speed is unknown until this much was taken."""
        self._evidence = evidence_bytes
        self._half_life = half_life_seconds
        self._passed = 0
        self._bytes = 0.0
        self._seconds = 0.0
        self._busy_since: float | None = None

    def advance(self, now: float, saturated: bool) -> None:
        """Account for the time since the last call; `saturated` is how it goes on."""
        if self._busy_since is not None:
            self._bytes, self._seconds = self._aged(now - self._busy_since)
        self._busy_since = now if saturated else None

    def done(self, size: int) -> None:
        """`size` bytes were taken."""
        if self._busy_since is not None:
            self._passed += size
            self._bytes += size

    def bytes_per_second(self, now: float) -> float | None:
        """None until it is known."""
        if self._passed < self._evidence:
            return None
        taken, seconds = (
            self._aged(now - self._busy_since) if self._busy_since is not None else (self._bytes, self._seconds)
        )
        return taken / seconds if seconds > 0 else None

    def _aged(self, elapsed: float) -> tuple[float, float]:
        weight = 0.5 ** (elapsed / self._half_life)
        return self._bytes * weight, self._seconds * weight + elapsed


JOB_OBJECTS: Final = 32
JOB_BYTES: Final = 64 << 20
"""A job is at most this large, so that completions come steadily; one object may be larger."""
WINDOW_BYTES: Final = 256 << 20
"""Handed to one adapter at once; the rest waits here, where it can still be dropped."""
SMALL_JOB_BYTES: Final = 1 << 20
_SHARE: Final = 4
"""The window is at most this part of the backlog, and a job that is not small this part of the window."""


class DropReason(StrEnum):
    """Why objects will not reach an adapter."""

    BACKLOG_BYTES = "backlog_bytes"
    """More waits for it than --l2-store-max-backlog-gb."""
    BACKLOG_SECONDS = "backlog_seconds"
    """More waits for it than it takes in --l2-store-max-backlog-seconds."""
    ADAPTER_DOWN = "adapter_down"
    """It does not answer."""
    CONTROLLER_BEHIND = "controller_behind"
    """The store controller has not come to them; no adapter was chosen yet."""
    ADAPTER_REMOVED = "adapter_removed"
    """An operator removed it before they were stored."""
    CONTROLLER_FAILED = "controller_failed"
    """The store controller failed with them in its hands."""


class StoreLimits(msgspec.Struct, frozen=True):
    """Limits of one adapter's queue, and which object is dropped beyond them."""

    backlog_bytes: int
    backlog_seconds: float | None = None
    """None: no bound by time."""
    drop: DropRule = DropRule.DEEPEST

    @property
    def window_bytes(self) -> int:
        return max(1, min(WINDOW_BYTES, self.backlog_bytes // _SHARE))


@dataclass(slots=True, eq=False)
class StoreJob:
    """Units that were handed to an adapter together."""

    number: int
    queue: StoreQueue
    units: Sequence[StoreUnit]
    """Empty once the adapter has released their buffers."""
    size_bytes: int
    started: float
    waited_seconds: float
    """The one that waited longest."""
    request_id: str
    """Of the first object, where it is known."""
    completed: bool = False
    kept: bool = False
    """It was completed while the adapter still had the buffers."""
    stored_bytes: int = 0
    """Once it is completed."""


class StoreQueue:
    """Owned by the store controller's thread; only `counters` and `status` are for others, too."""

    def __init__(self, client: AdapterClient, limits: StoreLimits) -> None:
        self.client = client
        self.counters = StoreCounters()
        self.open = True
        """False: nothing is added any more, what is here goes on."""
        self._bound(limits)
        self._waiting = WaitingStores(limits.drop)
        self._under_way: set[ObjectKey] = set()
        self._in_flight_bytes = 0
        self._speed = Throughput(self._window)

    @property
    def facts(self) -> AdapterFacts:
        """For the store policy: nothing is to go to an adapter that is being drained."""
        facts = self.client.facts
        return facts if self.open else facts._replace(healthy=False)

    def limit(self, limits: StoreLimits) -> None:
        """These apply from now on."""
        self._bound(limits)
        self._waiting.follow(limits.drop)

    @property
    def free_bytes(self) -> int:
        """Bytes that may be added before anything is dropped."""
        return max(0, self._limits.backlog_bytes - self.counters.backlog_bytes)

    def add(self, units: Sequence[StoreUnit]) -> None:
        """These are to go there.  One whose object is on its way already need not wait for that."""
        under_way, size, admitted = self._under_way, 0, 0
        for unit in units:
            key = unit.item.key
            if key not in under_way:
                under_way.add(key)
                self._waiting.add(unit)
                unit.remaining += 1
                admitted += 1
                size += unit.item.buffer.length
        self.counters.admit(admitted, size, len(units) - admitted)
        self._note_oldest()

    def next_job(self, number: int, now: float) -> StoreJob | None:
        """The next job to hand over; None where nothing waits or the window is full."""
        if not self._waiting or self._in_flight_bytes >= self._window:
            return None
        units: list[StoreUnit] = []
        size = 0
        while self._waiting and len(units) < JOB_OBJECTS and (not units or size < self._job_bytes):
            units.append(self._waiting.take())
            size += units[-1].size_bytes
        self.counters.submit(len(units), size)
        self._note_oldest()
        self._in_flight_bytes += size
        self._speed.advance(now, self._in_flight_bytes >= self._window)
        first = units[0]
        return StoreJob(number, self, units, size, now, now - first.since, first.request_id)

    def complete(self, job: StoreJob, outcomes: Sequence[Outcome], now: float) -> bool:
        """A job has its outcomes; what has none failed.  False when it had them already."""
        if job.completed:
            return False
        job.completed = True
        self._under_way.difference_update(unit.item.key for unit in job.units)
        self._speed.advance(now, self._in_flight_bytes >= self._window)
        failed: Counter[str] = Counter()
        failed_bytes: Counter[str] = Counter()
        if outcomes.count(Outcome.DONE) < len(job.units):
            unknown = [Outcome.FAILED] * (len(job.units) - len(outcomes))
            for unit, outcome in zip(job.units, (*outcomes, *unknown), strict=True):
                if outcome is not Outcome.DONE:
                    failed[outcome.value] += 1
                    failed_bytes[outcome.value] += unit.size_bytes
        stored = len(job.units) - failed.total()
        job.stored_bytes = stored_bytes = job.size_bytes - failed_bytes.total()
        if stored:
            self._speed.done(stored_bytes)
        self._in_flight_bytes -= job.size_bytes
        self._speed.advance(now, self._in_flight_bytes >= self._window)
        self.counters.complete(stored, stored_bytes, failed, failed_bytes)
        return True

    def drop_excess(self, now: float) -> tuple[list[StoreUnit], DropReason]:
        """Drop what waits beyond the limits."""
        limit, reason = float(self._limits.backlog_bytes), DropReason.BACKLOG_BYTES
        rate = self._speed.bytes_per_second(now)
        if rate is not None and self._limits.backlog_seconds is not None:
            by_time = rate * self._limits.backlog_seconds
            if by_time < limit:
                limit, reason = by_time, DropReason.BACKLOG_SECONDS
        excess = self.counters.backlog_bytes - limit
        units: list[StoreUnit] = []
        while excess > 0 and self._waiting:
            units.append(self._waiting.drop())
            excess -= units[-1].size_bytes
        self._dropped(units, reason)
        return units, reason

    def drop_all(self, reason: DropReason) -> list[StoreUnit]:
        """Drop everything that waits."""
        units = [self._waiting.take() for _ in range(len(self._waiting))]
        self._dropped(units, reason)
        return units

    def withdraw(self, lease: Lease) -> list[StoreUnit]:
        """Drop what waits of this lease."""
        units = self._waiting.withdraw(lease)
        self._dropped(units, DropReason.CONTROLLER_FAILED)
        return units

    def view(self, now: float) -> StoreView:
        """Any thread."""
        since = self.counters.waiting_since
        oldest = 0.0 if since is None else max(0.0, now - since)
        return StoreView(self.counters.now, oldest, self._speed.bytes_per_second(now))

    def status(self, now: float) -> dict[str, object]:
        counts, oldest_seconds, rate = self.view(now)
        return {
            **counts._asdict(),
            "backlog_bytes": counts.backlog_bytes,
            "oldest_seconds": round(oldest_seconds, 3),
            "bytes_per_second": None if rate is None else round(rate),
            "backlog_seconds": counts.backlog_bytes / rate if rate else None,
        }

    def _bound(self, limits: StoreLimits) -> None:
        self._limits = limits
        self._window = limits.window_bytes
        self._job_bytes = min(JOB_BYTES, max(self._window // _SHARE, min(self._window, SMALL_JOB_BYTES)))

    def _dropped(self, units: Sequence[StoreUnit], reason: DropReason) -> None:
        if not units:
            return
        self._under_way.difference_update(unit.item.key for unit in units)
        self.counters.drop(len(units), sum(unit.size_bytes for unit in units), reason)
        self._note_oldest()

    def _note_oldest(self) -> None:
        oldest = self._waiting.oldest
        self.counters.waiting_since = None if oldest is None else oldest.since
