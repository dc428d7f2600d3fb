"""Samples of what goes from L1 to L2."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from lmcache_core.contracts.samples import Sample, SampleKind
from lmcache_core.controllers.adapter_counters import VerbCounts
from lmcache_core.controllers.store_counters import StoreCounts
from lmcache_core.model.results import Outcome

if TYPE_CHECKING:
    from lmcache_core.app.parts import Parts

_NAME: Final = ("l2_name",)
_PLACE: Final = ("l2_name", "adapter_index")
_L1_TAG: Final = "_default"
STORE_JOBS: Final = SampleKind(
    "lmcache_mp.l2_store_submitted", "requests", "Jobs that store.", is_counter=True, labels=_NAME
)
STORE_OBJECTS: Final = SampleKind(
    "lmcache_mp.l2_store_submitted_objects", "chunks", "Objects of these jobs.", is_counter=True, labels=_NAME
)
STORE_JOBS_DONE: Final = SampleKind(
    "lmcache_mp.l2_store_completed",
    "requests",
    "Of the jobs that store, those answered.",
    is_counter=True,
    labels=_NAME,
)
STORE_OBJECTS_DONE: Final = SampleKind(
    "lmcache_mp.l2_store_completed_objects",
    "chunks",
    "Of the objects of these jobs, those that are stored.",
    is_counter=True,
    labels=_NAME,
)
STORES_IN_FLIGHT: Final = SampleKind(
    "lmcache_mp.num_inflight_l2_stores", "", "Jobs that store, without an answer.", is_counter=False, labels=_PLACE
)
STORE_ADAPTERS: Final = SampleKind(
    "lmcache_mp.l2_store_adapters",
    "",
    "Adapters that are stored to, by state: healthy or unhealthy.",
    is_counter=False,
    labels=("state", "l1_tag"),
)

STORE_ADMITTED: Final = SampleKind(
    "lmcache.l2.store.admitted",
    "{object}",
    "Objects that are to go to an adapter.  Each is stored, failed or dropped, or it is pending.",
    is_counter=True,
    labels=_NAME,
)
STORE_ADMITTED_BYTES: Final = SampleKind(
    "lmcache.l2.store.admitted.size", "By", "The same in bytes.", is_counter=True, labels=_NAME
)
STORE_ENDED: Final = SampleKind(
    "lmcache.l2.store.ended",
    "{object}",
    "What became of them: stored, failed (reason: the outcome) or dropped (reason: why).",
    is_counter=True,
    labels=("l2_name", "result", "reason"),
)
STORE_ENDED_BYTES: Final = SampleKind(
    "lmcache.l2.store.ended.size", "By", "The same in bytes.", is_counter=True, labels=("l2_name", "result", "reason")
)
STORE_PENDING: Final = SampleKind(
    "lmcache.l2.store.pending",
    "{object}",
    "Objects that wait for an adapter (waiting) or are with it (in_flight).",
    is_counter=False,
    labels=("l2_name", "state"),
)
STORE_PENDING_BYTES: Final = SampleKind(
    "lmcache.l2.store.pending.size", "By", "The same in bytes.", is_counter=False, labels=("l2_name", "state")
)
STORE_OLDEST: Final = SampleKind(
    "lmcache.l2.store.oldest_age",
    "s",
    "How long the oldest of those that wait has waited.",
    is_counter=False,
    labels=_NAME,
)
STORE_MERGED: Final = SampleKind(
    "lmcache.l2.store.merged",
    "{object}",
    "Not admitted: the same object was on its way to this adapter already.",
    is_counter=True,
    labels=_NAME,
)
STORE_SPEED: Final = SampleKind(
    "lmcache.l2.store.speed",
    "By/s",
    "How fast an adapter takes stores, once that is known.",
    is_counter=False,
    labels=_NAME,
)
BACKLOG: Final = SampleKind(
    "lmcache.l2.store.backlog",
    "By",
    "Bytes that L1 holds for L2; what goes to several adapters counts once.",
    is_counter=False,
)
TURNED_AWAY: Final = SampleKind(
    "lmcache.l2.store.turned_away",
    "{object}",
    "Objects that stay in L1 only because the store controller was too far behind; no adapter was chosen.",
    is_counter=True,
)

KINDS: Final = (
    STORE_JOBS,
    STORE_OBJECTS,
    STORE_JOBS_DONE,
    STORE_OBJECTS_DONE,
    STORES_IN_FLIGHT,
    STORE_ADAPTERS,
    STORE_ADMITTED,
    STORE_ADMITTED_BYTES,
    STORE_ENDED,
    STORE_ENDED_BYTES,
    STORE_PENDING,
    STORE_PENDING_BYTES,
    STORE_OLDEST,
    STORE_MERGED,
    STORE_SPEED,
    BACKLOG,
    TURNED_AWAY,
)


def store_samples(parts: Parts) -> Iterator[Sample]:
    states: Counter[str] = Counter(healthy=0, unhealthy=0)
    for client in parts.tiers.l2.clients:
        states["healthy" if client.answers else "unhealthy"] += 1
        yield from _jobs(client.name, client.index, client.counters.snapshot().verbs["store"])
    for state, count in states.items():
        yield STORE_ADAPTERS.of(count, state, _L1_TAG)
    for name, view in parts.tiers.store.views().items():
        yield from _account(name, view.account)
        yield STORE_OLDEST.of(view.oldest_seconds, name)
        if view.bytes_per_second is not None:
            yield STORE_SPEED.of(view.bytes_per_second, name)
    yield BACKLOG.of(parts.tiers.store.backlog_bytes)
    yield TURNED_AWAY.of(parts.tiers.store.refused)


def _jobs(name: str, index: int, row: VerbCounts) -> Iterator[Sample]:
    yield STORE_JOBS.of(row.jobs, name)
    yield STORE_OBJECTS.of(row.objects, name)
    yield STORE_JOBS_DONE.of(row.answered, name)
    yield STORE_OBJECTS_DONE.of(row.outcomes.get(Outcome.DONE.value, 0), name)
    yield STORES_IN_FLIGHT.of(row.jobs - row.answered, name, str(index))


def _account(name: str, account: StoreCounts) -> Iterator[Sample]:
    """Of one moment, so that what was admitted is what ended and what is pending."""
    yield STORE_ADMITTED.of(account.admitted, name)
    yield STORE_ADMITTED_BYTES.of(account.admitted_bytes, name)
    yield STORE_ENDED.of(account.stored, name, "stored", "")
    yield STORE_ENDED_BYTES.of(account.stored_bytes, name, "stored", "")
    for result, objects, sizes in (
        ("failed", account.failed_by_outcome, account.failed_bytes_by_outcome),
        ("dropped", account.dropped_by_reason, account.dropped_bytes_by_reason),
    ):
        for reason, count in objects.items():
            yield STORE_ENDED.of(count, name, result, reason)
            yield STORE_ENDED_BYTES.of(sizes[reason], name, result, reason)
    yield STORE_PENDING.of(account.waiting, name, "waiting")
    yield STORE_PENDING.of(account.in_flight, name, "in_flight")
    yield STORE_PENDING_BYTES.of(account.waiting_bytes, name, "waiting")
    yield STORE_PENDING_BYTES.of(account.in_flight_bytes, name, "in_flight")
    yield STORE_MERGED.of(account.merged, name)
