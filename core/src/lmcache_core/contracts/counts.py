"""Counts of the server's parts: exact, since the start, each set of one moment.  `server_counts` has all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

import msgspec

from lmcache_core.contracts.samples import Durations

TENANTS_MAX: Final = 1024
"""Pairs of model and salt that are counted by themselves, as long as the server runs; what comes later is counted together.

A row without requests in a long time keeps its place.  If its counts moved to the others', the others' would grow
by what happened long ago, and every rate made of them would show it as new; if they were forgotten, sums would fall, and
rates made of sums take that for a restart.
"""


OTHER_TENANT: Final = "_other"
"""Model and salt of that row."""


Tenant: TypeAlias = tuple[str, str]
"""Served model name and cache salt: whose row it is."""


@dataclass(slots=True)
class TenantCounts:
    """Since the server started.  A chunk of a prompt counts once, however many shards it has; stores and retrieves are of
    one shard, so that there each shard's object counts.

    A lookup counts with its answer, or as abandoned, never both.  What is missed is what was requested and not hit: it is
    not counted by itself, so that it always adds up.
    """

    lookups: int = 0
    """Answered."""
    lookup_times: dict[str, Durations] = field(default_factory=dict)
    """From the lookup to its answer, of the answered ones, by where the hit came from: `none`, `l1` or `l2`."""
    abandoned: int = 0
    """Superseded, ended or timed out before there was an answer; nothing else here counts them."""
    requested_chunks: int = 0
    hit_l1_chunks: int = 0
    hit_l2_chunks: int = 0
    """Of the hit, what L1 did not have of any shard when the lookup came."""
    requested_tokens: int = 0
    """With those of a last partial chunk, which are always missed."""
    hit_l1_tokens: int = 0
    hit_l2_tokens: int = 0
    hit_l1_objects: int = 0
    """Objects that the answers hold: one for each shard of a chunk."""
    hit_l2_objects: int = 0
    stores: int = 0
    """Commits that published chunks."""
    stores_late: int = 0
    """Commits whose slots had run out: nothing was published."""
    stored_chunks: int = 0
    stored_bytes: int = 0
    retrieves: int = 0
    """Of these, `retrieved_chunks` were given to workers to read."""
    retrieved_chunks: int = 0
    retrieved_bytes: int = 0
    early_exits: Counter[str] = field(default_factory=Counter)
    """Lookups that could find nothing, by reason; they are among `lookups`, too."""
    refused_chunks: Counter[str] = field(default_factory=Counter)
    """Not stored, by reason (`contracts.events.StoreRefused`)."""
    refused_bytes: Counter[str] = field(default_factory=Counter)
    unread_chunks: Counter[str] = field(default_factory=Counter)
    """Of retrieves that were not served, by reason: `missing`, `overwritten` or `too_many_transfers`."""

    @property
    def hit_chunks(self) -> int:
        return self.hit_l1_chunks + self.hit_l2_chunks

    @property
    def hit_tokens(self) -> int:
        return self.hit_l1_tokens + self.hit_l2_tokens

    @property
    def missed_chunks(self) -> int:
        return self.requested_chunks - self.hit_chunks

    @property
    def missed_tokens(self) -> int:
        return self.requested_tokens - self.hit_tokens

    def copy(self) -> TenantCounts:
        copied = TenantCounts()
        copied.add(self)
        return copied

    def add(self, other: TenantCounts) -> None:
        """Count what the other one counts, too."""
        for name in _NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in _BY_REASON:
            getattr(self, name).update(getattr(other, name))
        for tier, times in other.lookup_times.items():
            self.lookup_times.setdefault(tier, Durations()).add(times)


_BY_REASON: Final = ("early_exits", "refused_chunks", "refused_bytes", "unread_chunks")


_NUMBERS: Final = tuple(item.name for item in fields(TenantCounts) if item.name not in (*_BY_REASON, "lookup_times"))


class SlotCounts(msgspec.Struct, frozen=True):
    """Slots by state.  `used_bytes` is everything that is not free."""

    total: int
    free: int
    cached: int
    held: int
    quarantined: int
    leases: int
    used_bytes: int
    capacity_bytes: int

    @property
    def is_balanced(self) -> bool:
        """Every slot is in exactly one state."""
        return self.free + self.cached + self.held + self.quarantined == self.total


class Evicted(NamedTuple):
    """Since the start."""

    objects: int
    slot_bytes: int


class StoreCounts(NamedTuple):
    """Objects since the start, all of one moment:

    admitted == stored + failed + dropped + waiting + in_flight

    and the same in bytes.
    """

    admitted: int = 0
    stored: int = 0
    failed: int = 0
    """The adapter said so, did not answer in time, or the server could not hand them over."""
    dropped: int = 0
    waiting: int = 0
    in_flight: int = 0
    """Handed to the adapter, and not answered."""
    merged: int = 0
    """Not admitted: the same object was on its way to this adapter already."""
    admitted_bytes: int = 0
    stored_bytes: int = 0
    failed_bytes: int = 0
    dropped_bytes: int = 0
    waiting_bytes: int = 0
    in_flight_bytes: int = 0
    failed_by_outcome: Mapping[str, int] = {}
    """`rejected` where the adapter has no free space."""
    failed_bytes_by_outcome: Mapping[str, int] = {}
    dropped_by_reason: Mapping[str, int] = {}
    dropped_bytes_by_reason: Mapping[str, int] = {}

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


class PrefetchCounts(NamedTuple):
    """Since the start, but for what is active, queued or occupied now."""

    in_flight: int
    queued: int
    completed: int
    """Everything that could be loaded is there."""
    timed_out: int
    """Answered at their deadline, with what was there."""
    cancelled: int
    """Their requests ended."""
    abandoned: int
    """There was no adapter to ask, or the controller failed."""
    l1_bytes: int
    l1_max_bytes: int
    loaded: int
    """Objects that were checked and published in L1."""
    rejected: int
    """Objects that are not what they claim to be."""
    allocation_waits: int
    """Times that a prefetch waited for free space."""


@dataclass(slots=True)
class VerbCounts:
    """Jobs of one kind since the start.  At every moment:

    objects == sum(outcomes.values()) + pending_objects
    """

    jobs: int = 0
    answered: int = 0
    """By the adapter, by its deadline, or because it could not take them."""
    objects: int = 0
    pending_objects: int = 0
    pending_bytes: int = 0
    """Of stores and loads without an answer."""
    outcomes: dict[str, int] = field(default_factory=dict)
    """Objects of answered jobs."""
    done_bytes: int = 0
    """Of stores and loads: of the objects that are done."""
    seconds: float = 0.0
    """That answered jobs took, all together."""

    @property
    def adds_up(self) -> bool:
        return self.objects == sum(self.outcomes.values()) + self.pending_objects


class Declined(NamedTuple):
    """Objects that a lookup missed and the adapter has, but that were not loaded because computing them is faster."""

    lookups: int = 0
    objects: int = 0
    object_bytes: int = 0


class AdapterCounts(NamedTuple):
    """All of one moment."""

    verbs: Mapping[str, VerbCounts]
    busy_seconds: float
    """In which there was a job without an answer."""
    rejected: int
    """Loaded, and not what they claim to be."""
    declined: Declined = Declined()
    """Objects that the prefetch policy did not load."""
    damaged: int = 0
    """Of the rejected ones: ours by name, but short, torn or altered."""


class SubscriberState(StrEnum):
    """Of several that hold, the first."""

    ENDED = "ended"
    """It raised when it was asked to begin, and is not used."""
    STUCK = "stuck"
    """It has not come back from a call for too long."""
    FAILING = "failing"
    """It raised a short while ago."""
    BEHIND = "behind"
    """Events were dropped a short while ago, or wait for long."""
    OK = "ok"


class SubscriberStatus(msgspec.Struct, frozen=True):
    """Counts are since the start.  An event whose callback raised is delivered, too."""

    state: SubscriberState
    waiting: int
    delivered: int
    failed: int
    dropped: Mapping[str, int]
    """By event type."""
    cpu_seconds: float
    """Of the subscriber's own thread."""
    slowest_seconds: float
    """The longest that it took for one event, or for the end of a batch."""
    oldest_age_seconds: float
    """Of what waits, 0 where nothing does."""
    last_error: str


class RouterCounters(msgspec.Struct, frozen=True):
    """Since the server started."""

    requests: int = 0
    refused: int = 0
    """Answered negatively without a handler's word: unknown, unreadable, failed or too many waiting."""
    dropped: int = 0
    """Not answered at all: no readable envelope, or the connection is closed."""
    waiting: int = 0
    """Answers that wait because their connection reads slowly."""
    waiting_bytes: int = 0
    closed: int = 0
    """Connections that were closed because they did not read their answers."""


class HandshakeCounters(msgspec.Struct, frozen=True):
    """Connections to the engine port since the server started.  Those that are none of the others are in the middle of
    their handshake."""

    accepted: int = 0
    closed: int = 0
    ok: int = 0
    refused: int = 0
    """Closed by the server because the first bytes were not ZMTP 3: HTTP, another protocol, or ZeroMQ before 4.0."""
    incomplete: int = 0
    """Closed by the peer, or silent for too long, before the handshake was over."""
    forbidden: int = 0
    """Closed by the server because their owner may not use it (`--engine-users`)."""
