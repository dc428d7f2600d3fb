"""Samples of L2: stores and prefetches, jobs of every kind, bytes, time, how each adapter is, and what serdes do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from lmcache_core import (
    AdapterCounts,
    AdapterView,
    CircuitState,
    L2Counts,
    Outcome,
    PrefetchCounts,
    Sample,
    StoreView,
    VerbCounts,
)
from lmcache_observability.samples.kinds import counter, gauge, kinds_in

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

PREFETCHES: Final = gauge("lmcache_mp.active_prefetch_jobs", "", "Lookups that go on in L2 right now.")
PREFETCHES_QUEUED: Final = gauge("lmcache.prefetch.queued", "{lookup}", "Lookups that wait for their turn in L2.")
PREFETCHES_ENDED: Final = counter(
    "lmcache.prefetch.ended",
    "{lookup}",
    "Lookups that went on in L2 and are answered: completed, timed_out, cancelled by the end of the "
    "request, or abandoned.",
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

_OPERATION: Final = ("l2_name", "operation")

JOBS: Final = counter(
    "lmcache.l2.jobs", "{job}", "Jobs that an adapter was given: stores, lookups, loads and deletes.", *_OPERATION
)
JOBS_IN_FLIGHT: Final = gauge("lmcache.l2.jobs.in_flight", "{job}", "Of these, jobs without an answer.", *_OPERATION)
OBJECTS: Final = counter(
    "lmcache.l2.operation.objects", "{object}", "Objects of answered jobs, by outcome.", *_OPERATION, "outcome"
)
JOB_SECONDS: Final = counter(
    "lmcache.l2.operation.time", "s", "Time that answered jobs took, all of them together.", *_OPERATION
)
BUSY_SECONDS: Final = counter("lmcache.l2.busy.time", "s", "Time in which an adapter had a job to do.", "l2_name")
IO: Final = counter(
    "lmcache.l2.io", "By", "Bytes of objects that an adapter stored (write) or loaded (read).", "l2_name", "direction"
)
TIMEOUTS: Final = counter("lmcache.l2.timeouts", "{job}", "Jobs without an answer in time.", "l2_name")
FAULTS: Final = counter(
    "lmcache.l2.faults", "{fault}", "Times that an adapter raised or broke its contract.", "l2_name"
)
REJECTED: Final = counter(
    "lmcache.l2.rejected",
    "{object}",
    "Objects that were loaded, are not what they claim to be, and were not served.",
    "l2_name",
)

USED: Final = gauge("lmcache_mp.l2_usage_bytes", "", "Bytes that an adapter holds, where it knows.", "l2_name")
EVICTED: Final = counter(
    "lmcache_mp.l2_evicted_objects", "chunks", "Objects that were deleted to make room in an adapter.", "l2_name"
)

HEALTHY: Final = gauge("lmcache.l2.healthy", "1", "1: no condition worse than info is about the adapter.", "l2_name")
CIRCUIT: Final = gauge(
    "lmcache.l2.circuit",
    "1",
    "1 at the state of the adapter's circuit breaker: closed, open or half_open.",
    "l2_name",
    "state",
)
CAPACITY: Final = gauge("lmcache.l2.capacity", "By", "What an adapter may hold, where there is a limit.", "l2_name")
HELD_OBJECTS: Final = gauge(
    "lmcache.l2.objects", "{object}", "Objects that an adapter holds, where it knows.", "l2_name"
)
EVICTED_BYTES: Final = counter(
    "lmcache.l2.evicted", "By", "Bytes of the objects that were deleted to make room.", "l2_name"
)
NOT_EVICTED: Final = counter(
    "lmcache.l2.eviction.failures",
    "{object}",
    "Objects that were to be deleted and were not: gone before, refused because they were in use, or failed.",
    "l2_name",
    "reason",
)
_PLACE: Final = ("l2_name", "adapter_index")
STORE_JOBS: Final = counter("lmcache_mp.l2_store_submitted", "requests", "Jobs that store.", "l2_name")
STORE_OBJECTS: Final = counter("lmcache_mp.l2_store_submitted_objects", "chunks", "Objects of these jobs.", "l2_name")
STORE_JOBS_DONE: Final = counter(
    "lmcache_mp.l2_store_completed", "requests", "Of the jobs that store, those answered.", "l2_name"
)
STORE_OBJECTS_DONE: Final = counter(
    "lmcache_mp.l2_store_completed_objects", "chunks", "Of the objects of these jobs, those that are stored.", "l2_name"
)
STORES_IN_FLIGHT: Final = gauge("lmcache_mp.num_inflight_l2_stores", "", "Jobs that store, without an answer.", *_PLACE)
STORE_ADAPTERS: Final = gauge(
    "lmcache_mp.l2_store_adapters",
    "",
    "Adapters that are stored to, by state: healthy or unhealthy.",
    "state",
    "l1_tag",
)

LOOKUP_JOBS: Final = counter("lmcache_mp.l2_prefetch_lookup", "requests", "Jobs that look up.", "l2_name")
LOOKUP_OBJECTS: Final = counter(
    "lmcache_mp.l2_prefetch_lookup_objects", "chunks", "Objects that were looked up.", "l2_name"
)
LOAD_JOBS: Final = counter("lmcache_mp.l2_prefetch_load_submitted", "requests", "Jobs that load.", "l2_name")
LOAD_OBJECTS: Final = counter(
    "lmcache_mp.l2_prefetch_load_submitted_objects", "chunks", "Objects of these jobs.", "l2_name"
)
LOAD_JOBS_DONE: Final = counter(
    "lmcache_mp.l2_load_completed", "requests", "Of the jobs that load, those answered.", "l2_name"
)
LOAD_OBJECTS_DONE: Final = counter(
    "lmcache_mp.l2_prefetch_load_completed",
    "chunks",
    "Of the objects of these jobs, those that the adapter delivered.",
    "l2_name",
)
LOAD_FAILURES: Final = counter(
    "lmcache_mp.l2_prefetch_failure",
    "chunks",
    "Of the objects of these jobs, those that it did not, by outcome.",
    "l2_name",
    "reason",
)
DECLINED_LOOKUPS: Final = counter(
    "lmcache.prefetch.declined_lookups",
    "{lookup}",
    "Lookups for which something was not loaded although the adapter has it, because computing it is faster.",
    "l2_name",
)
DECLINED_OBJECTS: Final = counter(
    "lmcache.prefetch.declined", "{object}", "Objects that were not loaded for them.", "l2_name"
)
DECLINED_BYTES: Final = counter("lmcache.prefetch.declined_bytes", "By", "Bytes of these objects.", "l2_name")
LOADS_IN_FLIGHT: Final = gauge("lmcache_mp.num_inflight_l2_loads", "", "Jobs that load, without an answer.", *_PLACE)
LOADING_BYTES: Final = gauge(
    "lmcache_mp.inflight_load_memory_usage_bytes", "", "Bytes of the objects of these.", *_PLACE
)
LOAD_ADAPTERS: Final = gauge(
    "lmcache_mp.l2_prefetch_adapters", "", "Adapters that are loaded from, by state: healthy or unhealthy.", "state"
)

_SERDE: Final = ("l2_name", "serde", "direction")

SERDE_OBJECTS: Final = counter(
    "lmcache.l2.serde.objects",
    "{object}",
    "Objects that a serde encoded on their way to an adapter, or decoded on their way back.",
    *_SERDE,
)
SERDE_INPUT: Final = counter("lmcache.l2.serde.input", "By", "Bytes that it was given.", *_SERDE)
SERDE_OUTPUT: Final = counter("lmcache.l2.serde.output", "By", "Bytes that it made of them.", *_SERDE)
SERDE_SECONDS: Final = counter("lmcache.l2.serde.time", "s", "Time that it took, all threads together.", *_SERDE)
SERDE_FAILURES: Final = counter(
    "lmcache.l2.serde.failures",
    "{object}",
    "Objects that it could not encode, or whose stored bytes it refused.",
    *_SERDE,
)
SERDE_REFUSED: Final = counter(
    "lmcache.l2.serde.refused",
    "{object}",
    "Objects that were not given to any serde: too_large for their memory, of an unknown_layout, or stored through "
    "other_chain of serdes.",
    "l2_name",
    "reason",
)

KINDS: Final = kinds_in(globals())
_L1_TAG: Final = "_default"


def l2_samples(counts: L2Counts) -> Iterator[Sample]:
    for name, view in counts.stores.items():
        yield from _stores_of(name, view)
    yield BACKLOG.of(counts.backlog_bytes)
    yield TURNED_AWAY.of(counts.turned_away)
    yield from _prefetches(counts.prefetch)
    yield from _adapters(counts.adapters)
    for adapter in counts.adapters:
        yield from _serdes(adapter)


def _stores_of(name: str, view: StoreView) -> Iterator[Sample]:
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


def _prefetches(counts: PrefetchCounts) -> Iterator[Sample]:
    yield PREFETCHES.of(counts.in_flight)
    yield PREFETCHES_QUEUED.of(counts.queued)
    yield PREFETCHES_ENDED.of(counts.completed, "completed")
    yield PREFETCHES_ENDED.of(counts.timed_out, "timed_out")
    yield PREFETCHES_ENDED.of(counts.cancelled, "cancelled")
    yield PREFETCHES_ENDED.of(counts.abandoned, "abandoned")
    yield PREFETCH_BYTES.of(counts.l1_bytes)
    yield PREFETCH_LIMIT.of(counts.l1_max_bytes)
    yield PREFETCH_LOADED.of(counts.loaded)
    yield PREFETCH_WAITS.of(counts.allocation_waits)


def _adapters(adapters: Sequence[AdapterView]) -> Iterator[Sample]:
    states: Counter[str] = Counter(healthy=0, unhealthy=0)
    for adapter in adapters:
        states["healthy" if adapter.answers else "unhealthy"] += 1
        yield from _adapter(adapter)
    for state, count in states.items():
        yield STORE_ADAPTERS.of(count, state, _L1_TAG)
        yield LOAD_ADAPTERS.of(count, state)


def _adapter(adapter: AdapterView) -> Iterator[Sample]:
    name, counts = adapter.name, adapter.counts
    for verb, row in counts.verbs.items():
        yield from _jobs(name, verb, row)
    yield from _stores(name, adapter.index, counts.verbs["store"])
    yield from _loads(name, adapter.index, counts)
    yield BUSY_SECONDS.of(counts.busy_seconds, name)
    yield IO.of(counts.verbs["store"].done_bytes, name, "write")
    yield IO.of(counts.verbs["load"].done_bytes, name, "read")
    yield REJECTED.of(counts.rejected, name)
    yield HEALTHY.of(adapter.healthy, name)
    yield TIMEOUTS.of(adapter.timeouts, name)
    yield FAULTS.of(adapter.faults, name)
    if adapter.circuit is not None:
        for state in CircuitState:
            yield CIRCUIT.of(state is adapter.circuit.state, name, state.value)
    if adapter.usage is not None:
        yield USED.of(adapter.usage.used_bytes, name)
        yield HELD_OBJECTS.of(adapter.usage.objects, name)
        if adapter.usage.capacity_bytes is not None:
            yield CAPACITY.of(adapter.usage.capacity_bytes, name)
    if adapter.eviction is not None:
        yield EVICTED.of(adapter.eviction.evicted, name)
        yield EVICTED_BYTES.of(adapter.eviction.evicted_bytes, name)
        yield NOT_EVICTED.of(adapter.eviction.gone, name, "gone")
        yield NOT_EVICTED.of(adapter.eviction.refused, name, "refused")
        yield NOT_EVICTED.of(adapter.eviction.failed, name, "failed")


def _jobs(name: str, verb: str, row: VerbCounts) -> Iterator[Sample]:
    yield JOBS.of(row.jobs, name, verb)
    yield JOBS_IN_FLIGHT.of(row.jobs - row.answered, name, verb)
    yield JOB_SECONDS.of(row.seconds, name, verb)
    for outcome, count in row.outcomes.items():
        yield OBJECTS.of(count, name, verb, outcome)


def _stores(name: str, index: int, row: VerbCounts) -> Iterator[Sample]:
    yield STORE_JOBS.of(row.jobs, name)
    yield STORE_OBJECTS.of(row.objects, name)
    yield STORE_JOBS_DONE.of(row.answered, name)
    yield STORE_OBJECTS_DONE.of(row.outcomes.get(Outcome.DONE.value, 0), name)
    yield STORES_IN_FLIGHT.of(row.jobs - row.answered, name, str(index))


def _loads(name: str, index: int, counts: AdapterCounts) -> Iterator[Sample]:
    lookups, loads = counts.verbs["lookup"], counts.verbs["load"]
    yield LOOKUP_JOBS.of(lookups.jobs, name)
    yield LOOKUP_OBJECTS.of(lookups.objects, name)
    yield LOAD_JOBS.of(loads.jobs, name)
    yield LOAD_OBJECTS.of(loads.objects, name)
    yield LOAD_JOBS_DONE.of(loads.answered, name)
    yield LOAD_OBJECTS_DONE.of(loads.outcomes.get(Outcome.DONE.value, 0), name)
    for outcome, count in loads.outcomes.items():
        if outcome != Outcome.DONE.value:
            yield LOAD_FAILURES.of(count, name, outcome)
    yield DECLINED_LOOKUPS.of(counts.declined.lookups, name)
    yield DECLINED_OBJECTS.of(counts.declined.objects, name)
    yield DECLINED_BYTES.of(counts.declined.object_bytes, name)
    yield LOADS_IN_FLIGHT.of(loads.jobs - loads.answered, name, str(index))
    yield LOADING_BYTES.of(loads.pending_bytes, name, str(index))


def _serdes(adapter: AdapterView) -> Iterator[Sample]:
    """Bytes, time and failures of the serdes between L1 and the adapter, in each direction."""
    for (serde, direction), row in adapter.serdes.items():
        labels = (adapter.name, serde, direction)
        yield SERDE_OBJECTS.of(row.objects, *labels)
        yield SERDE_INPUT.of(row.input_bytes, *labels)
        yield SERDE_OUTPUT.of(row.output_bytes, *labels)
        yield SERDE_SECONDS.of(row.seconds, *labels)
        yield SERDE_FAILURES.of(row.failures, *labels)
    for reason, count in adapter.serde_refusals.items():
        yield SERDE_REFUSED.of(count, adapter.name, reason)
