"""Counters of stores to one adapter, and their samples."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from lmcache_core.contracts.samples import Sample, counter, gauge, kinds_in


class StoreCounts(NamedTuple):
    """Objects since the start, all of one moment:

    admitted == stored + failed + dropped + waiting + in_flight

    and the same in bytes.
    """

    admitted: int
    stored: int
    failed: int
    """The adapter said so, did not answer in time, or the server could not hand them over."""
    dropped: int
    waiting: int
    in_flight: int
    """Handed to the adapter, and not answered."""
    merged: int
    """Not admitted: the same object was on its way to this adapter already."""
    admitted_bytes: int
    stored_bytes: int
    failed_bytes: int
    dropped_bytes: int
    waiting_bytes: int
    in_flight_bytes: int
    failed_by_outcome: Mapping[str, int]
    """`rejected` where the adapter has no room."""
    failed_bytes_by_outcome: Mapping[str, int]
    dropped_by_reason: Mapping[str, int]
    dropped_bytes_by_reason: Mapping[str, int]

    @property
    def backlog_bytes(self) -> int:
        """Waiting and in flight."""
        return self.waiting_bytes + self.in_flight_bytes

    @property
    def adds_up(self) -> bool:
        """In objects and in bytes."""
        return (
            self.admitted == self.stored + self.failed + self.dropped + self.waiting + self.in_flight
            and self.admitted_bytes == self.stored_bytes + self.failed_bytes + self.dropped_bytes + self.backlog_bytes
        )


class StoreView(NamedTuple):
    """Stores to one adapter: counts, age and speed."""

    counts: StoreCounts
    oldest_seconds: float
    """Age of the object that waits longest."""
    bytes_per_second: float | None
    """None until it is known."""


class StoreCounters:
    """Written by the store controller's thread, read by any: a snapshot is consistent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards all below
        self._admitted = self._admitted_bytes = 0
        self._stored = self._stored_bytes = 0
        self._waiting = self._waiting_bytes = 0
        self._in_flight = self._in_flight_bytes = 0
        self._merged = 0
        self._failed: Counter[str] = Counter()
        self._failed_bytes: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        self._dropped_bytes: Counter[str] = Counter()
        self.waiting_since: float | None = None
        """When what waits longest began to; None while nothing waits."""

    @property
    def backlog_bytes(self) -> int:
        return self._waiting_bytes + self._in_flight_bytes

    def admit(self, objects: int, size: int, merged: int) -> None:
        """`objects` more, of `size` bytes, wait; `merged` others were on their way already."""
        with self._lock:
            self._admitted += objects
            self._admitted_bytes += size
            self._waiting += objects
            self._waiting_bytes += size
            self._merged += merged

    def submit(self, objects: int, size: int) -> None:
        """`objects` of those that wait, of `size` bytes, were handed to the adapter."""
        with self._lock:
            self._waiting -= objects
            self._waiting_bytes -= size
            self._in_flight += objects
            self._in_flight_bytes += size

    def complete(
        self, stored: int, stored_bytes: int, failed: Mapping[str, int], failed_bytes: Mapping[str, int]
    ) -> None:
        """Objects in flight have their outcome: stored, or failed, by outcome."""
        with self._lock:
            self._in_flight -= stored + sum(failed.values())
            self._in_flight_bytes -= stored_bytes + sum(failed_bytes.values())
            self._stored += stored
            self._stored_bytes += stored_bytes
            self._failed.update(failed)
            self._failed_bytes.update(failed_bytes)

    def drop(self, objects: int, size: int, reason: str) -> None:
        """`objects` of those that wait, of `size` bytes, were dropped."""
        with self._lock:
            self._waiting -= objects
            self._waiting_bytes -= size
            self._dropped[reason] += objects
            self._dropped_bytes[reason] += size

    def snapshot(self) -> StoreCounts:
        with self._lock:
            return StoreCounts(
                admitted=self._admitted,
                stored=self._stored,
                failed=self._failed.total(),
                dropped=self._dropped.total(),
                waiting=self._waiting,
                in_flight=self._in_flight,
                merged=self._merged,
                admitted_bytes=self._admitted_bytes,
                stored_bytes=self._stored_bytes,
                failed_bytes=self._failed_bytes.total(),
                dropped_bytes=self._dropped_bytes.total(),
                waiting_bytes=self._waiting_bytes,
                in_flight_bytes=self._in_flight_bytes,
                failed_by_outcome=dict(self._failed),
                failed_bytes_by_outcome=dict(self._failed_bytes),
                dropped_by_reason=dict(self._dropped),
                dropped_bytes_by_reason=dict(self._dropped_bytes),
            )


STORE_ADMITTED: Final = counter(
    "lmcache.l2.store.admitted",
    "{object}",
    "Objects that are to go to an adapter.  Each is stored, failed or dropped, or it is pending.",
    "l2_name",
)
STORE_ADMITTED_BYTES: Final = counter("lmcache.l2.store.admitted.size", "By", "The same in bytes.", "l2_name")
STORE_ENDED: Final = counter(
    "lmcache.l2.store.ended",
    "{object}",
    "What became of them: stored, failed (reason: the outcome) or dropped (reason: why).",
    "l2_name",
    "result",
    "reason",
)
STORE_ENDED_BYTES: Final = counter(
    "lmcache.l2.store.ended.size", "By", "The same in bytes.", "l2_name", "result", "reason"
)
STORE_PENDING: Final = gauge(
    "lmcache.l2.store.pending",
    "{object}",
    "Objects that wait for an adapter (waiting) or are with it (in_flight).",
    "l2_name",
    "state",
)
STORE_PENDING_BYTES: Final = gauge("lmcache.l2.store.pending.size", "By", "The same in bytes.", "l2_name", "state")
STORE_OLDEST: Final = gauge(
    "lmcache.l2.store.oldest_age", "s", "How long the oldest of those that wait has waited.", "l2_name"
)
STORE_MERGED: Final = counter(
    "lmcache.l2.store.merged",
    "{object}",
    "Not admitted: the same object was on its way to this adapter already.",
    "l2_name",
)
STORE_SPEED: Final = gauge(
    "lmcache.l2.store.speed", "By/s", "How fast an adapter takes stores, once that is known.", "l2_name"
)
BACKLOG: Final = gauge(
    "lmcache.l2.store.backlog", "By", "Bytes that L1 holds for L2; what goes to several adapters counts once."
)
TURNED_AWAY: Final = counter(
    "lmcache.l2.store.turned_away",
    "{object}",
    "Objects that stay in L1 only because the store controller was too far behind; no adapter was chosen.",
)


KINDS: Final = kinds_in(globals())


def store_samples(views: Mapping[str, StoreView], backlog_bytes: int, refused: int) -> Iterator[Sample]:
    """`views` by the name of the adapter."""
    for name, view in views.items():
        yield from _of_adapter(name, view)
    yield BACKLOG.of(backlog_bytes)
    yield TURNED_AWAY.of(refused)


def _of_adapter(name: str, view: StoreView) -> Iterator[Sample]:
    """All of one moment: what was admitted is what ended and what is pending."""
    counts = view.counts
    yield STORE_ADMITTED.of(counts.admitted, name)
    yield STORE_ADMITTED_BYTES.of(counts.admitted_bytes, name)
    yield STORE_ENDED.of(counts.stored, name, "stored", "")
    yield STORE_ENDED_BYTES.of(counts.stored_bytes, name, "stored", "")
    for result, objects, sizes in (
        ("failed", counts.failed_by_outcome, counts.failed_bytes_by_outcome),
        ("dropped", counts.dropped_by_reason, counts.dropped_bytes_by_reason),
    ):
        for reason, count in objects.items():
            yield STORE_ENDED.of(count, name, result, reason)
            yield STORE_ENDED_BYTES.of(sizes[reason], name, result, reason)
    yield STORE_PENDING.of(counts.waiting, name, "waiting")
    yield STORE_PENDING.of(counts.in_flight, name, "in_flight")
    yield STORE_PENDING_BYTES.of(counts.waiting_bytes, name, "waiting")
    yield STORE_PENDING_BYTES.of(counts.in_flight_bytes, name, "in_flight")
    yield STORE_MERGED.of(counts.merged, name)
    yield STORE_OLDEST.of(view.oldest_seconds, name)
    if view.bytes_per_second is not None:
        yield STORE_SPEED.of(view.bytes_per_second, name)
