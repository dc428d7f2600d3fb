"""What is on its way to one adapter: waiting here, or handed over in jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from lmcache_core.contracts.policies import AdapterFacts
from lmcache_core.controllers.adapter_port import AdapterPort
from lmcache_core.controllers.store_ledger import StoreAccount, StoreLedger
from lmcache_core.controllers.store_unit import StoreUnit
from lmcache_core.controllers.store_waiting import DropRule, WaitingStores
from lmcache_core.controllers.throughput import Throughput
from lmcache_core.l1.leases import Lease
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.results import Outcome

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


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """How much may wait for one adapter, each for itself, and what goes when more does."""

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
    """None any more once the adapter has let go of their buffers."""
    size_bytes: int
    begun: float
    waited_seconds: float
    """The one that waited longest."""
    request_id: str
    """Of the first object, where it is known."""
    settled: bool = False
    kept: bool = False
    """It was settled while the adapter still had the buffers."""
    stored_bytes: int = 0
    """Once it is settled."""


class StoreView(NamedTuple):
    """How stores to one adapter fare."""

    account: StoreAccount
    oldest_seconds: float
    """How long what waits longest has waited."""
    bytes_per_second: float | None
    """None until it is known."""


class StoreQueue:
    """Owned by the store controller's thread; only `ledger` and `status` are for others, too."""

    def __init__(self, port: AdapterPort, limits: StoreLimits) -> None:
        self.port = port
        self.ledger = StoreLedger()
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
        facts = self.port.facts
        return facts if self.open else facts._replace(healthy=False)

    def limit(self, limits: StoreLimits) -> None:
        """These apply from now on."""
        self._bound(limits)
        self._waiting.follow(limits.drop)

    @property
    def room_bytes(self) -> int:
        """May be added without anything being dropped for it."""
        return max(0, self._limits.backlog_bytes - self.ledger.backlog_bytes)

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
        self.ledger.admit(admitted, size, len(units) - admitted)
        self._note_oldest()

    def next_job(self, number: int, now: float) -> StoreJob | None:
        """What is to be handed over now, if anything."""
        if not self._waiting or self._in_flight_bytes >= self._window:
            return None
        units: list[StoreUnit] = []
        size = 0
        while self._waiting and len(units) < JOB_OBJECTS and (not units or size < self._job_bytes):
            units.append(self._waiting.take())
            size += units[-1].size_bytes
        self.ledger.submit(len(units), size)
        self._note_oldest()
        self._in_flight_bytes += size
        self._speed.advance(now, self._in_flight_bytes >= self._window)
        first = units[0]
        return StoreJob(number, self, units, size, now, now - first.since, first.request_id)

    def settle(self, job: StoreJob, outcomes: Sequence[Outcome], now: float) -> bool:
        """A job has its outcomes; what has none failed.  False when it had them already."""
        if job.settled:
            return False
        job.settled = True
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
        self.ledger.settle(stored, stored_bytes, failed, failed_bytes)
        return True

    def drop_excess(self, now: float) -> tuple[list[StoreUnit], DropReason]:
        """Give up what waits beyond the limits."""
        limit, reason = float(self._limits.backlog_bytes), DropReason.BACKLOG_BYTES
        rate = self._speed.bytes_per_second(now)
        if rate is not None and self._limits.backlog_seconds is not None:
            by_time = rate * self._limits.backlog_seconds
            if by_time < limit:
                limit, reason = by_time, DropReason.BACKLOG_SECONDS
        excess = self.ledger.backlog_bytes - limit
        units: list[StoreUnit] = []
        while excess > 0 and self._waiting:
            units.append(self._waiting.drop())
            excess -= units[-1].size_bytes
        self._dropped(units, reason)
        return units, reason

    def drop_all(self, reason: DropReason) -> list[StoreUnit]:
        """Give up everything that waits."""
        units = [self._waiting.take() for _ in range(len(self._waiting))]
        self._dropped(units, reason)
        return units

    def withdraw(self, lease: Lease) -> list[StoreUnit]:
        """Give up what this lease holds, as far as it waits."""
        units = self._waiting.withdraw(lease)
        self._dropped(units, DropReason.CONTROLLER_FAILED)
        return units

    def view(self, now: float) -> StoreView:
        """Any thread."""
        since = self.ledger.waiting_since
        oldest = 0.0 if since is None else max(0.0, now - since)
        return StoreView(self.ledger.account(), oldest, self._speed.bytes_per_second(now))

    def status(self, now: float) -> dict[str, object]:
        account, oldest_seconds, rate = self.view(now)
        return {
            **account._asdict(),
            "backlog_bytes": account.backlog_bytes,
            "oldest_seconds": round(oldest_seconds, 3),
            "bytes_per_second": None if rate is None else round(rate),
            "backlog_seconds": account.backlog_bytes / rate if rate else None,
        }

    def _bound(self, limits: StoreLimits) -> None:
        self._limits = limits
        self._window = limits.window_bytes
        self._job_bytes = min(JOB_BYTES, max(self._window // _SHARE, min(self._window, SMALL_JOB_BYTES)))

    def _dropped(self, units: Sequence[StoreUnit], reason: DropReason) -> None:
        if not units:
            return
        self._under_way.difference_update(unit.item.key for unit in units)
        self.ledger.drop(len(units), sum(unit.size_bytes for unit in units), reason)
        self._note_oldest()

    def _note_oldest(self) -> None:
        oldest = self._waiting.oldest
        self.ledger.waiting_since = None if oldest is None else oldest.since
