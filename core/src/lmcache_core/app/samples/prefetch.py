"""Samples of what comes from L2 to L1."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from lmcache_core.contracts.samples import Sample, SampleKind
from lmcache_core.controllers.adapter_counters import AdapterCounts
from lmcache_core.model.results import Outcome

if TYPE_CHECKING:
    from lmcache_core.app.parts import Parts

_NAME: Final = ("l2_name",)
_PLACE: Final = ("l2_name", "adapter_index")
LOOKUP_JOBS: Final = SampleKind(
    "lmcache_mp.l2_prefetch_lookup", "requests", "Jobs that look up.", is_counter=True, labels=_NAME
)
LOOKUP_OBJECTS: Final = SampleKind(
    "lmcache_mp.l2_prefetch_lookup_objects", "chunks", "Objects that were looked up.", is_counter=True, labels=_NAME
)
LOAD_JOBS: Final = SampleKind(
    "lmcache_mp.l2_prefetch_load_submitted", "requests", "Jobs that load.", is_counter=True, labels=_NAME
)
LOAD_OBJECTS: Final = SampleKind(
    "lmcache_mp.l2_prefetch_load_submitted_objects", "chunks", "Objects of these jobs.", is_counter=True, labels=_NAME
)
LOAD_JOBS_DONE: Final = SampleKind(
    "lmcache_mp.l2_load_completed", "requests", "Of the jobs that load, those answered.", is_counter=True, labels=_NAME
)
LOAD_OBJECTS_DONE: Final = SampleKind(
    "lmcache_mp.l2_prefetch_load_completed",
    "chunks",
    "Of the objects of these jobs, those that the adapter delivered.",
    is_counter=True,
    labels=_NAME,
)
LOAD_FAILURES: Final = SampleKind(
    "lmcache_mp.l2_prefetch_failure",
    "chunks",
    "Of the objects of these jobs, those that it did not, by outcome.",
    is_counter=True,
    labels=("l2_name", "reason"),
)
DECLINED_LOOKUPS: Final = SampleKind(
    "lmcache.prefetch.declined_lookups",
    "{lookup}",
    "Lookups for which something was not loaded although the adapter has it, because computing it is faster.",
    is_counter=True,
    labels=_NAME,
)
DECLINED_OBJECTS: Final = SampleKind(
    "lmcache.prefetch.declined", "{object}", "Objects that were not loaded for them.", is_counter=True, labels=_NAME
)
DECLINED_BYTES: Final = SampleKind(
    "lmcache.prefetch.declined_bytes", "By", "Bytes of these objects.", is_counter=True, labels=_NAME
)
LOADS_IN_FLIGHT: Final = SampleKind(
    "lmcache_mp.num_inflight_l2_loads", "", "Jobs that load, without an answer.", is_counter=False, labels=_PLACE
)
LOADING_BYTES: Final = SampleKind(
    "lmcache_mp.inflight_load_memory_usage_bytes", "", "Bytes of the objects of these.", is_counter=False, labels=_PLACE
)
LOAD_ADAPTERS: Final = SampleKind(
    "lmcache_mp.l2_prefetch_adapters",
    "",
    "Adapters that are loaded from, by state: healthy or unhealthy.",
    is_counter=False,
    labels=("state",),
)

PREFETCHES: Final = SampleKind(
    "lmcache_mp.active_prefetch_jobs", "", "Lookups that go on in L2 right now.", is_counter=False
)
PREFETCHES_QUEUED: Final = SampleKind(
    "lmcache.prefetch.queued", "{lookup}", "Lookups that wait for their turn in L2.", is_counter=False
)
PREFETCHES_ENDED: Final = SampleKind(
    "lmcache.prefetch.ended",
    "{lookup}",
    "Lookups that went on in L2 and are answered: completed, timed_out, cancelled by the end of the "
    "request, or given_up.",
    is_counter=True,
    labels=("result",),
)
PREFETCH_BYTES: Final = SampleKind(
    "lmcache.prefetch.l1_usage", "By", "Bytes of L1 that prefetches occupy until workers took over.", is_counter=False
)
PREFETCH_LIMIT: Final = SampleKind(
    "lmcache.prefetch.l1_limit", "By", "Bytes of L1 that prefetches may occupy.", is_counter=False
)
PREFETCH_LOADED: Final = SampleKind(
    "lmcache.prefetch.loaded", "{object}", "Objects that were loaded, checked and published in L1.", is_counter=True
)
PREFETCH_WAITS: Final = SampleKind(
    "lmcache.prefetch.room_waits", "{wait}", "Times that a prefetch had to wait for room in L1.", is_counter=True
)

KINDS: Final = (
    LOOKUP_JOBS,
    LOOKUP_OBJECTS,
    LOAD_JOBS,
    LOAD_OBJECTS,
    LOAD_JOBS_DONE,
    LOAD_OBJECTS_DONE,
    LOAD_FAILURES,
    DECLINED_LOOKUPS,
    DECLINED_OBJECTS,
    DECLINED_BYTES,
    LOADS_IN_FLIGHT,
    LOADING_BYTES,
    LOAD_ADAPTERS,
    PREFETCHES,
    PREFETCHES_QUEUED,
    PREFETCHES_ENDED,
    PREFETCH_BYTES,
    PREFETCH_LIMIT,
    PREFETCH_LOADED,
    PREFETCH_WAITS,
)


def prefetch_samples(parts: Parts) -> Iterator[Sample]:
    states: Counter[str] = Counter(healthy=0, unhealthy=0)
    for client in parts.tiers.l2.clients:
        states["healthy" if client.answers else "unhealthy"] += 1
        yield from _loads(client.name, client.index, client.counters.snapshot())
    for state, count in states.items():
        yield LOAD_ADAPTERS.of(count, state)
    view = parts.tiers.prefetch.view()
    yield PREFETCHES.of(view.active)
    yield PREFETCHES_QUEUED.of(view.queued)
    yield PREFETCHES_ENDED.of(view.completed, "completed")
    yield PREFETCHES_ENDED.of(view.timed_out, "timed_out")
    yield PREFETCHES_ENDED.of(view.cancelled, "cancelled")
    yield PREFETCHES_ENDED.of(view.given_up, "given_up")
    yield PREFETCH_BYTES.of(view.l1_bytes)
    yield PREFETCH_LIMIT.of(view.l1_max_bytes)
    yield PREFETCH_LOADED.of(view.loaded)
    yield PREFETCH_WAITS.of(view.room_waits)


def _loads(name: str, index: int, account: AdapterCounts) -> Iterator[Sample]:
    lookups, loads = account.verbs["lookup"], account.verbs["load"]
    yield LOOKUP_JOBS.of(lookups.jobs, name)
    yield LOOKUP_OBJECTS.of(lookups.objects, name)
    yield LOAD_JOBS.of(loads.jobs, name)
    yield LOAD_OBJECTS.of(loads.objects, name)
    yield LOAD_JOBS_DONE.of(loads.answered, name)
    yield LOAD_OBJECTS_DONE.of(loads.outcomes.get(Outcome.DONE.value, 0), name)
    for outcome, count in loads.outcomes.items():
        if outcome != Outcome.DONE.value:
            yield LOAD_FAILURES.of(count, name, outcome)
    yield DECLINED_LOOKUPS.of(account.declined.lookups, name)
    yield DECLINED_OBJECTS.of(account.declined.objects, name)
    yield DECLINED_BYTES.of(account.declined.object_bytes, name)
    yield LOADS_IN_FLIGHT.of(loads.jobs - loads.answered, name, str(index))
    yield LOADING_BYTES.of(loads.pending_bytes, name, str(index))
