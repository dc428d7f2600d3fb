"""What happens in the server, as types.  A subscriber names the types it wants.

Publishing never blocks and never fails; a full queue drops the event and counts it.
"""

from __future__ import annotations

from typing import Protocol

import msgspec


class Event(msgspec.Struct, frozen=True, gc=False):
    """Root of all events."""


class Publisher(Protocol):
    def publish(self, event: Event) -> None:
        """Hand an event to whoever subscribed.  Any thread; never blocks."""

    def wants(self, kind: type[Event]) -> bool:
        """Does anybody listen?  Ask before building an event that is costly to build."""


class LookupFinished(Event, frozen=True):
    """A lookup has its answer: this many chunks of the prompt are in L1 and held for the request."""

    request_id: str
    model_name: str
    cache_salt: str
    requested_chunks: int
    hit_chunks: int
    l2_chunks: int
    seconds: float


class ChunksStored(Event, frozen=True):
    """A worker published chunks in L1."""

    model_name: str
    cache_salt: str
    kv_rank: int
    chunks: int
    payload_bytes: int


class ChunksRetrieved(Event, frozen=True):
    """A worker was given chunks out of L1."""

    model_name: str
    cache_salt: str
    kv_rank: int
    chunks: int
    payload_bytes: int


class ChunksEvicted(Event, frozen=True):
    """L1 let objects go to make room."""

    chunks: int
    slot_bytes: int
    used_ratio: float


class QuotaReached(Event, frozen=True):
    """A cache salt has as much of L1 as it may: its oldest objects leave, and this much of its stores was refused."""

    cache_salt: str
    limit_bytes: int
    used_bytes: int
    refused_bytes: int


class QuotaChanged(Event, frozen=True):
    """An operator gave a cache salt a limit, or took it away: `limit_bytes` is what it may use of L1 from now on."""

    cache_salt: str
    limit_bytes: int | None


class StoreSubmitted(Event, frozen=True):
    """A batch of objects is on its way from L1 to an adapter."""

    adapter: str
    job: int
    objects: int
    object_bytes: int


class StoreCompleted(Event, frozen=True):
    """That batch has its outcome."""

    adapter: str
    job: int
    stored: int
    failed: int
    seconds: float


class StoresDropped(Event, frozen=True):
    """Objects will not reach this adapter, or none where no name is given.  `reason` is one of `backlog_bytes`,
    `backlog_seconds`, `adapter_down`, `controller_behind` and `controller_failed`."""

    adapter: str
    objects: int
    object_bytes: int
    reason: str


class ObjectsEvicted(Event, frozen=True):
    """An adapter deleted objects to make room: `used_ratio` is what it used before."""

    adapter: str
    objects: int
    object_bytes: int
    used_ratio: float


class PrefetchSubmitted(Event, frozen=True):
    """A lookup goes on in L2."""

    request_id: str
    total_keys: int
    l1_prefix_hits: int
    remaining_keys: int


class PrefetchCompleted(Event, frozen=True):
    """What L2 had for it is in L1."""

    request_id: str
    found_keys: int
    loaded_keys: int
    failed_keys: int
    loaded_bytes: int
    seconds: float


class ObjectRejected(Event, frozen=True):
    """Bytes came back that are not the object they claim to be.  They were not served."""

    adapter: str
    object_id: str
    outcome: str
    reason: str


class WorkerRegistered(Event, frozen=True):
    """An engine worker may store and retrieve from now on."""

    instance_id: int
    model_name: str
    world_size: int
    layout: str
    shared_memory: bool


class WorkerLeft(Event, frozen=True):
    """A worker unregistered, or is known dead."""

    instance_id: int
    model_name: str
    reason: str


class LeasesExpired(Event, frozen=True):
    """Holds passed their deadline: unclaimed ones were dropped, those of workers are in quarantine."""

    dropped_slots: int
    quarantined_slots: int
