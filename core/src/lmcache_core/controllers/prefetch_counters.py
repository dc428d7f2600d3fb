"""Counts of prefetches, and their samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from lmcache_core.contracts.samples import Sample, counter, gauge, kinds_in


class PrefetchCounts(NamedTuple):
    """Since the start, but for what is active, queued or occupied now."""

    in_flight: int
    queued: int
    completed: int
    """Everything that could be had is there."""
    timed_out: int
    """Answered at their deadline, with what was there."""
    cancelled: int
    """Their requests ended."""
    given_up: int
    """There was no adapter to ask, or the controller failed."""
    l1_bytes: int
    l1_max_bytes: int
    loaded: int
    """Objects that were checked and published in L1."""
    rejected: int
    """Objects that are not what they claim to be."""
    allocation_waits: int
    """Times that a prefetch waited for free space."""


PREFETCHES: Final = gauge("lmcache_mp.active_prefetch_jobs", "", "Lookups that go on in L2 right now.")
PREFETCHES_QUEUED: Final = gauge("lmcache.prefetch.queued", "{lookup}", "Lookups that wait for their turn in L2.")
PREFETCHES_ENDED: Final = counter(
    "lmcache.prefetch.ended",
    "{lookup}",
    "Lookups that went on in L2 and are answered: completed, timed_out, cancelled by the end of the "
    "request, or given_up.",
    "result",
)
PREFETCH_BYTES: Final = gauge(
    "lmcache.prefetch.l1_usage", "By", "Bytes of L1 that prefetches occupy until workers took over."
)
PREFETCH_LIMIT: Final = gauge("lmcache.prefetch.l1_limit", "By", "Bytes of L1 that prefetches may occupy.")
PREFETCH_LOADED: Final = counter(
    "lmcache.prefetch.loaded", "{object}", "Objects that were loaded, checked and published in L1."
)
PREFETCH_WAITS: Final = counter(
    "lmcache.prefetch.room_waits", "{wait}", "Times that a prefetch had to wait for room in L1."
)


KINDS: Final = kinds_in(globals())


def prefetch_samples(counts: PrefetchCounts) -> Iterator[Sample]:
    yield PREFETCHES.of(counts.in_flight)
    yield PREFETCHES_QUEUED.of(counts.queued)
    yield PREFETCHES_ENDED.of(counts.completed, "completed")
    yield PREFETCHES_ENDED.of(counts.timed_out, "timed_out")
    yield PREFETCHES_ENDED.of(counts.cancelled, "cancelled")
    yield PREFETCHES_ENDED.of(counts.given_up, "given_up")
    yield PREFETCH_BYTES.of(counts.l1_bytes)
    yield PREFETCH_LIMIT.of(counts.l1_max_bytes)
    yield PREFETCH_LOADED.of(counts.loaded)
    yield PREFETCH_WAITS.of(counts.allocation_waits)
