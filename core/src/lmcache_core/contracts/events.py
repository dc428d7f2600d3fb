"""What happens in the server, as types.  A subscriber names the types it wants.

Publishing never blocks and never fails; a full queue drops the event and counts it.
"""

from __future__ import annotations

import time
from typing import Annotated, Protocol

import msgspec


def values(*known: str) -> msgspec.Meta:
    """Of a field: everything that it says today.  `SubscriberSuite` publishes each of them."""
    return msgspec.Meta(examples=list(known))


class Event(msgspec.Struct, frozen=True, gc=False, eq=False, kw_only=True):
    """Root of all events.  Two are equal when they say the same, whenever it happened."""

    at: float = msgspec.field(default_factory=time.time)
    """Seconds since the epoch.  Of what took a while, the end; where it began follows from its `seconds`."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._said() == other._said()

    def __hash__(self) -> int:
        return hash((type(self), self._said()))

    def _said(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__struct_fields__ if name != "at")


class Publisher(Protocol):
    def publish(self, event: Event) -> None:
        """Hand an event to its subscribers.  Any thread; never blocks."""

    def wants(self, kind: type[Event]) -> bool:
        """True when an event of this kind has a subscriber.  Ask before building an event that is costly to build."""


class LookupStarted(Event, frozen=True):
    """An engine asks what there is of a prompt.  `trace_context` is the W3C `traceparent` of its `request_configs`."""

    request_id: str
    model_name: str
    cache_salt: str
    prompt_tokens: int
    requested_chunks: int
    trace_context: str | None = None


class LookupHashes(Event, frozen=True):
    """Chunks that a lookup asks for: hashes of 32 bytes, in the prompt's order.  Built only where it has a subscriber."""

    request_id: str
    model_name: str
    cache_salt: str
    world_size: int
    prompt_tokens: int
    chunk_hashes: bytes


class LookupFinished(Event, frozen=True):
    """A lookup has its answer: this many chunks of the prompt are in L1 and held for the request.  Of the hit,
    `l2_chunks` were not in L1 of every shard when it came, and were brought from L2.  `prompt_tokens` counts a last
    partial chunk, too, which is always a miss."""

    request_id: str
    model_name: str
    cache_salt: str
    requested_chunks: int
    hit_chunks: int
    l2_chunks: int
    seconds: float
    prompt_tokens: int = 0
    trace_context: str | None = None


class LookupAbandoned(Event, frozen=True):
    """A lookup will never have an answer: a newer one of its request replaced it, its request ended, or its time was
    over.  Each lookup that started is finished or abandoned, never both."""

    request_id: str
    model_name: str
    cache_salt: str
    prompt_tokens: int
    requested_chunks: int
    seconds: float


class RequestEnded(Event, frozen=True):
    """A request is over: its engine says so, or, `incomplete`, the server has released what it kept; another end may come."""

    request_id: str
    incomplete: bool = False


class BlocksAllocated(Event, frozen=True):
    """An engine's scheduler gave a request blocks of the engine's own cache.  `block_ids` has 8 bytes for each block, a signed
    little-endian number; `content_hashes` 8 bytes for each, equal where the block holds the same tokens.  `process_id` is the
    scheduler's.  Costly to build, so that it is published only where a subscriber wants it."""

    process_id: int
    model_name: str
    request_id: str
    block_ids: bytes
    content_hashes: bytes


class RequestAnswered(Event, frozen=True):
    """A message of an engine was answered.  `outcome` is `ok`, `error` or `refused`; `seconds` counts from when it was
    received."""

    operation: str
    outcome: Annotated[str, values("ok", "error", "refused")]
    seconds: float


class ChunksStored(Event, frozen=True):
    """A worker published chunks in L1.  `seconds` is how long it held their slots to fill them."""

    model_name: str
    cache_salt: str
    kv_rank: int
    chunks: int
    payload_bytes: int
    request_id: str = ""
    first_chunk: int = 0
    seconds: float = 0.0


class ChunksRetrieved(Event, frozen=True):
    """A worker has read chunks out of L1.  `seconds` is how long it held them for it."""

    model_name: str
    cache_salt: str
    kv_rank: int
    chunks: int
    payload_bytes: int
    request_id: str = ""
    first_chunk: int = 0
    seconds: float = 0.0


class StoreRefused(Event, frozen=True):
    """L1 did not take chunks that a worker wanted to store.  `reason` is `no_room`, `quota`, `too_many_transfers`, `frozen`
    or `stopping`."""

    model_name: str
    cache_salt: str
    chunks: int
    reason: Annotated[str, values("no_room", "quota", "too_many_transfers", "frozen", "stopping")]


class ObjectsAdded(Event, frozen=True):
    """Objects were added to L1: their chunk hashes, 32 bytes each.  `origin` is `worker` or `l2`.  The removal of one that
    is removed at once may be reported first.  Costly to build, so that it is published only where it has a subscriber."""

    model_name: str
    cache_salt: str
    kv_rank: int
    object_bytes: int
    origin: Annotated[str, values("worker", "l2")]
    request_id: str
    first_chunk: int
    chunk_hashes: bytes


class ObjectsRemoved(Event, frozen=True):
    """Objects were removed from L1.  `reason` is `evicted`, `quota`, `cleared` or `passing` (loaded for readers that have
    read it).  Costly to build, so that it is published only where it has a subscriber."""

    model_name: str
    cache_salt: str
    kv_rank: int
    reason: Annotated[str, values("evicted", "quota", "cleared", "passing")]
    chunk_hashes: bytes


class ObjectsRead(Event, frozen=True):
    """A worker was given these objects.  Costly to build, so that it is published only where it has a subscriber."""

    model_name: str
    cache_salt: str
    kv_rank: int
    request_id: str
    first_chunk: int
    chunk_hashes: bytes


class ChunksEvicted(Event, frozen=True):
    """L1 let objects go to make room."""

    chunks: int
    slot_bytes: int
    used_ratio: float


class CacheCleared(Event, frozen=True):
    """An operator or an engine had L1 emptied."""

    chunks: int
    force: bool


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
    """That batch has its outcome.  It had waited for the adapter for `waited_seconds` before the `seconds` that it took."""

    adapter: str
    job: int
    stored: int
    failed: int
    seconds: float
    stored_bytes: int = 0
    waited_seconds: float = 0.0
    request_id: str = ""
    """Of the first object of the batch, as far as it is known."""


class StoresDropped(Event, frozen=True):
    """Objects will not reach this adapter, or none where no name is given.  `reason` is one of `backlog_bytes`,
    `backlog_seconds`, `adapter_down`, `adapter_removed`, `controller_behind` and `controller_failed`."""

    adapter: str
    objects: int
    object_bytes: int
    reason: Annotated[
        str,
        values(
            "backlog_bytes",
            "backlog_seconds",
            "adapter_down",
            "adapter_removed",
            "controller_behind",
            "controller_failed",
        ),
    ]


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


class L2LookupCompleted(Event, frozen=True):
    """An adapter said which objects of a lookup it has."""

    adapter: str
    job: int
    request_id: str
    keys: int
    found: int
    seconds: float


class LoadsDeclined(Event, frozen=True):
    """A lookup misses objects that an adapter has, and they are not loaded because computing them is faster."""

    adapter: str
    request_id: str
    objects: int
    object_bytes: int


class LoadSubmitted(Event, frozen=True):
    """Objects are on their way from an adapter to L1; where several requests wait for them, for the first."""

    adapter: str
    job: int
    request_id: str
    objects: int
    object_bytes: int


class LoadCompleted(Event, frozen=True):
    """They have arrived, or not."""

    adapter: str
    job: int
    request_id: str
    loaded: int
    failed: int
    loaded_bytes: int
    seconds: float


class PrefetchCompleted(Event, frozen=True):
    """What L2 had for it is in L1."""

    request_id: str
    found_keys: int
    loaded_keys: int
    failed_keys: int
    loaded_bytes: int
    seconds: float


class ObjectRejected(Event, frozen=True):
    """Bytes came back that are not the object they claim to be.  They were not served.  `outcome` is `damaged` or `foreign`;
    `reason` is a sentence."""

    adapter: str
    object_id: str
    outcome: Annotated[str, values("damaged", "foreign")]
    reason: str


class WorkerRegistered(Event, frozen=True):
    """An engine worker may store and retrieve from now on."""

    instance_id: int
    model_name: str
    world_size: int
    layout: str
    shared_memory: bool


class WorkerLeft(Event, frozen=True):
    """A worker unregistered, or is known dead: `reason` is `unregistered`, `silent`, or `closed`: it, or a
    new process under its id, registered over another connection, and its own is closed."""

    instance_id: int
    model_name: str
    reason: Annotated[str, values("unregistered", "silent", "closed")]


class LeasesExpired(Event, frozen=True):
    """Holds passed their deadline: unclaimed ones were dropped, those of workers are in quarantine."""

    dropped_slots: int
    quarantined_slots: int


class AdapterHealthChanged(Event, frozen=True):
    """An adapter stopped answering, or answers again."""

    adapter: str
    healthy: bool


class AdapterAdded(Event, frozen=True):
    """An operator added an L2 adapter while the server ran."""

    adapter: str
    type: str


class AdapterRemoved(Event, frozen=True):
    """An operator removed an L2 adapter while the server ran.  `drained` is false when stores to it were cancelled."""

    adapter: str
    drained: bool


class SettingChanged(Event, frozen=True):
    """An operator changed a setting while the server ran.  Values are as `/config` shows them, so without secrets."""

    name: str
    before: str
    after: str
