"""Samples of the L2 adapters: jobs of every kind, bytes, time, and how each of them is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from lmcache_core.contracts.conditions import ActiveCondition
from lmcache_core.contracts.samples import Sample, SampleKind
from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_core.controllers.adapter_conditions import adapter_subject
from lmcache_core.controllers.adapter_counters import VerbCounts
from lmcache_core.controllers.conditions import is_well
from lmcache_core.jobs.circuit_breaker import CircuitState

if TYPE_CHECKING:
    from lmcache_core.app.parts import Parts

_NAME: Final = ("l2_name",)
_OPERATION: Final = ("l2_name", "operation")

JOBS: Final = SampleKind(
    "lmcache.l2.jobs",
    "{job}",
    "Jobs that an adapter was given: stores, lookups, loads and deletes.",
    is_counter=True,
    labels=_OPERATION,
)
JOBS_IN_FLIGHT: Final = SampleKind(
    "lmcache.l2.jobs.in_flight", "{job}", "Of these, jobs without an answer.", is_counter=False, labels=_OPERATION
)
OBJECTS: Final = SampleKind(
    "lmcache.l2.operation.objects",
    "{object}",
    "Objects of answered jobs, by outcome.",
    is_counter=True,
    labels=(*_OPERATION, "outcome"),
)
JOB_SECONDS: Final = SampleKind(
    "lmcache.l2.operation.time",
    "s",
    "Time that answered jobs took, all of them together.",
    is_counter=True,
    labels=_OPERATION,
)
BUSY_SECONDS: Final = SampleKind(
    "lmcache.l2.busy.time", "s", "Time in which an adapter had a job to do.", is_counter=True, labels=_NAME
)
IO: Final = SampleKind(
    "lmcache.l2.io",
    "By",
    "Bytes of objects that an adapter stored (write) or loaded (read).",
    is_counter=True,
    labels=("l2_name", "direction"),
)
TIMEOUTS: Final = SampleKind(
    "lmcache.l2.timeouts", "{job}", "Jobs without an answer in time.", is_counter=True, labels=_NAME
)
FAULTS: Final = SampleKind(
    "lmcache.l2.faults", "{fault}", "Times that an adapter raised or broke its contract.", is_counter=True, labels=_NAME
)
REJECTED: Final = SampleKind(
    "lmcache.l2.rejected",
    "{object}",
    "Objects that were loaded, are not what they claim to be, and were not served.",
    is_counter=True,
    labels=_NAME,
)

USED: Final = SampleKind(
    "lmcache_mp.l2_usage_bytes", "", "Bytes that an adapter holds, where it knows.", is_counter=False, labels=_NAME
)
EVICTED: Final = SampleKind(
    "lmcache_mp.l2_evicted_objects",
    "chunks",
    "Objects that were deleted to make room in an adapter.",
    is_counter=True,
    labels=_NAME,
)

HEALTHY: Final = SampleKind(
    "lmcache.l2.healthy",
    "1",
    "1: no condition worse than info is about the adapter.",
    is_counter=False,
    labels=_NAME,
)
CIRCUIT: Final = SampleKind(
    "lmcache.l2.circuit",
    "1",
    "1 at the state of the adapter's circuit breaker: closed, open or half_open.",
    is_counter=False,
    labels=("l2_name", "state"),
)
CAPACITY: Final = SampleKind(
    "lmcache.l2.capacity", "By", "What an adapter may hold, where there is a limit.", is_counter=False, labels=_NAME
)
HELD_OBJECTS: Final = SampleKind(
    "lmcache.l2.objects", "{object}", "Objects that an adapter holds, where it knows.", is_counter=False, labels=_NAME
)
EVICTED_BYTES: Final = SampleKind(
    "lmcache.l2.evicted", "By", "Bytes of the objects that were deleted to make room.", is_counter=True, labels=_NAME
)
NOT_EVICTED: Final = SampleKind(
    "lmcache.l2.eviction.failures",
    "{object}",
    "Objects that were to be deleted and were not: gone before, refused because they were in use, or failed.",
    is_counter=True,
    labels=("l2_name", "reason"),
)

KINDS: Final = (
    JOBS,
    JOBS_IN_FLIGHT,
    OBJECTS,
    JOB_SECONDS,
    BUSY_SECONDS,
    IO,
    TIMEOUTS,
    FAULTS,
    REJECTED,
    USED,
    EVICTED,
    HEALTHY,
    CIRCUIT,
    CAPACITY,
    HELD_OBJECTS,
    EVICTED_BYTES,
    NOT_EVICTED,
)


def adapter_samples(parts: Parts, conditions: Sequence[ActiveCondition]) -> Iterator[Sample]:
    for client in parts.tiers.l2.clients:
        tally = client.counters.snapshot()
        for verb, row in tally.verbs.items():
            yield from _jobs(client.name, verb, row)
        yield BUSY_SECONDS.of(tally.busy_seconds, client.name)
        yield IO.of(tally.verbs["store"].done_bytes, client.name, "write")
        yield IO.of(tally.verbs["load"].done_bytes, client.name, "read")
        yield REJECTED.of(tally.rejected, client.name)
        yield HEALTHY.of(is_well(adapter_subject(client.name), conditions), client.name)
        yield from _adapter(client)
    for eviction in parts.tiers.l2.evictions:
        counters = eviction.controller.counters
        yield EVICTED.of(counters.evicted, eviction.adapter)
        yield EVICTED_BYTES.of(counters.evicted_bytes, eviction.adapter)
        yield NOT_EVICTED.of(counters.gone, eviction.adapter, "gone")
        yield NOT_EVICTED.of(counters.refused, eviction.adapter, "refused")
        yield NOT_EVICTED.of(counters.failed, eviction.adapter, "failed")


def _jobs(name: str, verb: str, row: VerbCounts) -> Iterator[Sample]:
    yield JOBS.of(row.jobs, name, verb)
    yield JOBS_IN_FLIGHT.of(row.jobs - row.answered, name, verb)
    yield JOB_SECONDS.of(row.seconds, name, verb)
    for outcome, count in row.outcomes.items():
        yield OBJECTS.of(count, name, verb, outcome)


def _adapter(client: AdapterClient) -> Iterator[Sample]:
    yield TIMEOUTS.of(client.timeouts, client.name)
    yield FAULTS.of(client.faults, client.name)
    circuit = client.circuit()
    if circuit is not None:
        for state in CircuitState:
            yield CIRCUIT.of(state is circuit.state, client.name, state.value)
    usage = client.usage()
    if usage is not None:
        yield USED.of(usage.used_bytes, client.name)
        yield HELD_OBJECTS.of(usage.objects, client.name)
        if usage.capacity_bytes is not None:
            yield CAPACITY.of(usage.capacity_bytes, client.name)
