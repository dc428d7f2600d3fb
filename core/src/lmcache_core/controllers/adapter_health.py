"""Conditions and samples of L2 adapters, as the server sees them from outside; the adapter's own conditions are added."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.conditions import ActiveCondition, Condition, Severity
from lmcache_core.contracts.l2_adapter import CircuitState
from lmcache_core.contracts.samples import Sample, counter, gauge, kinds_in
from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_core.controllers.adapter_jobs import AdapterCounts, VerbCounts
from lmcache_core.controllers.conditions import RecentGrowth, counts_of, is_well
from lmcache_core.controllers.l2_eviction import L2EvictionCounters
from lmcache_core.model.results import Outcome

FAILED_SHARE_MAX: Final = 0.01
"""Of a minute's objects of one kind of job."""
MOMENT_SECONDS: Final = 10.0
"""After this time without a failure, an adapter no longer counts as failing."""
_FAILED: Final = (Outcome.FAILED.value, Outcome.TIMED_OUT.value)
_REFUSED: Final = (Outcome.REJECTED.value,)
_NOUNS: Final = {"store": "stores", "lookup": "lookups", "load": "loads", "delete": "deletes"}


def adapter_subject(name: str) -> str:
    """The subject of an L2 adapter's conditions."""
    return f"adapter {name}"


class AdapterWatch:
    """Counts of all adapters, as far as their conditions need them.  Not safe from several threads at once."""

    def __init__(self, clock: Clock) -> None:
        self._minute = RecentGrowth(clock)
        self._moment = RecentGrowth(clock, MOMENT_SECONDS)

    def conditions(self, client: AdapterClient) -> Iterator[Condition]:
        """To be asked once per second.  Never blocks for longer than the adapter's `circuit` does."""
        subject = adapter_subject(client.name)
        if overdue := client.overdue:
            yield Condition(
                "adapter_silent",
                Severity.WARNING,
                f"{overdue} jobs have no answer within {client.timeout_seconds:g} s; it is given nothing more until it answers",
                "see whether its backend hangs; --l2-timeout-seconds says how long it may take",
                subject,
                counts_of(overdue=overdue),
            )
        circuit = client.circuit()
        if circuit is not None and circuit.state is not CircuitState.CLOSED:
            yield Condition(
                "adapter_paused",
                Severity.WARNING,
                f"its backend failed {circuit.failures_in_a_row} times in a row and is left alone; from time to time a probe "
                "asks it",
                "see the log for what it answered, and whether it can be reached",
                subject,
                counts_of(failures_in_a_row=circuit.failures_in_a_row, openings=circuit.openings),
            )
        account = client.counters.snapshot()
        yield from self._failing(subject, account.verbs)
        if damaged := self._minute.of((subject, "damaged"), account.damaged):
            yield Condition(
                "adapter_objects_damaged",
                Severity.WARNING,
                f"{damaged:.0f} objects of the last minute were not what was stored; none of them was served",
                "see whether its medium fails; the log names the objects, which are stored anew when they are computed again",
                subject,
                counts_of(objects=damaged),
            )

    def _failing(self, subject: str, verbs: Mapping[str, VerbCounts]) -> Iterator[Condition]:
        failing: dict[str, _Share] = {}
        for verb, row in verbs.items():
            if share := self._share(subject, verb, row, _FAILED):
                failing[_NOUNS[verb]] = share
        if failing:
            yield Condition(
                "adapter_jobs_fail",
                Severity.WARNING,
                "of the last minute, "
                + ", ".join(f"{share.bad:.0f} of {share.answered:.0f} {noun}" for noun, share in failing.items())
                + " failed",
                "see the log for what its backend answered",
                subject,
                counts_of(
                    failed=sum(share.bad for share in failing.values()),
                    objects=sum(share.answered for share in failing.values()),
                ),
            )
        if refused := self._share(subject, "store", verbs["store"], _REFUSED):
            yield Condition(
                "adapter_refuses",
                Severity.WARNING,
                f"it refused {refused.bad:.0f} of the {refused.answered:.0f} objects that it was to store in the last minute",
                "see whether it is full, whether objects are longer than it takes, and whether foreign files are in the way",
                subject,
                counts_of(refused=refused.bad, objects=refused.answered),
            )

    def _share(self, subject: str, verb: str, row: VerbCounts, bad: Collection[str]) -> _Share | None:
        """Of the last minute's objects, where it is too large, and it has not gone well since."""
        minute, moment = (
            {outcome: growth.of((subject, verb, bad, outcome), count) for outcome, count in row.outcomes.items()}
            for growth in (self._minute, self._moment)
        )
        share = _Share(sum(minute.get(outcome, 0.0) for outcome in bad), sum(minute.values()))
        goes_well = any(moment.values()) and not any(moment.get(outcome, 0.0) for outcome in bad)
        return share if share.bad > FAILED_SHARE_MAX * share.answered and not goes_well else None


class _Share(NamedTuple):
    bad: float
    answered: float


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


KINDS: Final = kinds_in(globals())
_L1_TAG: Final = "_default"


def adapter_samples(
    clients: Sequence[AdapterClient],
    evictions: Iterable[tuple[str, L2EvictionCounters]],
    conditions: Sequence[ActiveCondition],
) -> Iterator[Sample]:
    """`evictions` are those of adapters that have one, with the adapter's name."""
    states: Counter[str] = Counter(healthy=0, unhealthy=0)
    for client in clients:
        states["healthy" if client.answers else "unhealthy"] += 1
        counts, name = client.counters.snapshot(), client.name
        for verb, row in counts.verbs.items():
            yield from _jobs(name, verb, row)
        yield from _stores(name, client.index, counts.verbs["store"])
        yield from _loads(name, client.index, counts)
        yield BUSY_SECONDS.of(counts.busy_seconds, name)
        yield IO.of(counts.verbs["store"].done_bytes, name, "write")
        yield IO.of(counts.verbs["load"].done_bytes, name, "read")
        yield REJECTED.of(counts.rejected, name)
        yield HEALTHY.of(is_well(adapter_subject(name), conditions), name)
        yield from _adapter(client)
    for state, count in states.items():
        yield STORE_ADAPTERS.of(count, state, _L1_TAG)
        yield LOAD_ADAPTERS.of(count, state)
    for name, evicted in evictions:
        yield EVICTED.of(evicted.evicted, name)
        yield EVICTED_BYTES.of(evicted.evicted_bytes, name)
        yield NOT_EVICTED.of(evicted.gone, name, "gone")
        yield NOT_EVICTED.of(evicted.refused, name, "refused")
        yield NOT_EVICTED.of(evicted.failed, name, "failed")


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
