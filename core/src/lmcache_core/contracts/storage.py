"""The storage verbs that request modules use.  Chunks are named by key space and chunk hash, always in batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import msgspec

from lmcache_core.model.keys import KeySpace, ObjectKey
from lmcache_core.model.results import Bitmap

READERS_MAX = 255
"""Reads of each chunk that a lookup may ask for."""


class StoredSpace(NamedTuple):
    """A key space, and how large one object of it is without its header page."""

    space: KeySpace
    payload_bytes: int


class Shard(NamedTuple):
    """One shard of a lookup (or one object group of it): a chunk counts when it is there in any one of these spaces.

    A shard whose workers are known to use several layouts is given once for each of them, with one space."""

    spaces: tuple[StoredSpace, ...]
    window: int | None = None
    """None: every chunk of a prefix is needed.  Otherwise only this number at its end, at least 1, because the layers attend
    to no more (sliding windows, recurrent states): only those must be there, are held and loaded."""


class PromptFacts(msgspec.Struct, frozen=True, gc=False):
    """Whose prompt a lookup is about and how long it is, for events and counts; what is found does not depend on it."""

    model_name: str
    cache_salt: str
    world_size: int
    tokens: int
    """With those of a last partial chunk."""
    chunks: int
    """Whole chunks that are asked for; all of them count as missed where no hashes are given."""
    trace_context: str | None = None
    """The W3C `traceparent` of the request."""
    miss_reason: str = ""
    """Why nothing can be found, where that is known before looking, in a word or two."""


class LookupRequest(NamedTuple):
    """Find the longest prefix of `chunk_hashes` of which every shard has what it needs, bring that into L1 and hold it for
    `readers` reads of each chunk.  A newer lookup with the same connection and request id replaces the older one, which
    releases what no worker has picked up."""

    connection: bytes
    request_id: str
    shards: tuple[Shard, ...]
    chunk_hashes: Sequence[bytes]
    readers: int
    prompt: PromptFacts | None = None
    """None: what follows from the shards."""
    in_l1_only: bool = False


class SparseLookupRequest(LookupRequest):
    """Find all of `chunk_hashes` that every shard has, whatever is missing between them, bring those into L1 and hold them
    for `readers` reads of each.  A place is an index in `chunk_hashes`; one chunk may be at several.  Windows of shards
    have no meaning here and are refused."""


class SlotReferences(msgspec.Struct, frozen=True, eq=False):
    """Slots that a worker reads or fills.  They are neither moved nor evicted until they are released or published."""

    slots: tuple[int, ...]
    handle: Any
    """The storage's own record of these references."""


class LeasedObject(NamedTuple):
    """Where an object lies in L1's region: header page and payload, in one run.  The page is sealed."""

    offset: int
    length: int


class ReadLease(Protocol):
    """Objects that another server may read.  Safe from any thread.  At its deadline it ends by itself: what is read later may
    be something else, which the header's key and digest show."""

    @property
    def objects(self) -> Sequence[LeasedObject | None]:
        """One for each key, computed anew each time; None where L1 did not have it, it was released, or the lease has ended; of
        length 0 where L1 has it, and no share of `max_bytes` was left."""

    @property
    def size_bytes(self) -> int:
        """What the leased slots take, 0 once the lease has ended."""

    def renew(self, seconds: float) -> bool:
        """From now on.  False when it has ended."""

    def release(self, places: Sequence[int]) -> None:
        """The objects of these keys are not read any more."""

    def end(self) -> None:
        """Nothing is read any more.  Ending it again does nothing."""


class Storage(Protocol):
    """Safe from any thread.  Only `reserve` waits, and only with `may_wait`.  `worker` is the token of a registration.

    What a lookup found stays held until workers have taken it over, it is freed, or its request ends; a request whose
    scheduler falls silent is released after a while.  Workers of a request that acquire chunks take over what any of its
    lookups holds of them, one read each."""

    def lookup(self, request: LookupRequest) -> None:
        """Start a lookup.  Its answer is had by `lookup_result` or `on_lookup`, at the latest when the time for lookups is
        over: what is there by then counts.  Raises ValueError for a window of less than one chunk, and for more readers than
        READERS_MAX."""

    def lookup_sparse(self, request: SparseLookupRequest) -> None:
        """Start a sparse lookup.  Its answer is had by `sparse_result` or `on_sparse_lookup`; all else is as for `lookup`,
        with places for chunks: `free_lookup`, `end_lookup` and `renew_lookups` are for both.  Raises ValueError for a
        shard with a window."""

    def lookup_result(self, connection: bytes, request_id: str) -> int | None:
        """Chunks found and held; None while the lookup runs.  Given once; 0 afterwards and for unknown lookups."""

    def expected_hits(self, connection: bytes, request_id: str) -> int | None:
        """Chunks that `lookup_result` will say, as far as it is known: None until every adapter has said what it has, less
        afterwards if something cannot be loaded.  As often as one likes, until the request ends; 0 afterwards, and for
        unknown and sparse lookups."""

    def on_lookup(self, connection: bytes, request_id: str, function: Callable[[int], bool]) -> None:
        """Call `function` with what `lookup_result` would give, as soon as that is not None: at once, or later on a thread of
        the server's, which it must not keep waiting; what it raises there is logged.  The answer counts as given when it
        returns True."""

    def sparse_result(self, connection: bytes, request_id: str) -> Bitmap | None:
        """The places found and held; None while the lookup runs.  Given once; of size 0 afterwards and for unknown
        lookups."""

    def on_sparse_lookup(self, connection: bytes, request_id: str, function: Callable[[Bitmap], bool]) -> None:
        """Call `function` with what `sparse_result` would give, as `on_lookup` does."""

    def free_lookup(self, connection: bytes, request_id: str, first_chunk: int, end_chunk: int) -> None:
        """The request does not need these chunks of its lookup any more."""

    def end_lookup(self, connection: bytes, request_id: str) -> None:
        """The request is over: release what no worker has picked up."""

    def renew_lookups(self, connection: bytes) -> None:
        """Move the deadlines of this connection's lookups: its scheduler is alive."""

    def acquire(
        self, worker: int, request_id: str, space: StoredSpace, chunk_hashes: Sequence[bytes], first_chunk: int
    ) -> SlotReferences | None:
        """Reference chunks for a worker to read, taking over what its request's lookup held; None when one is not there."""

    def release(self, references: SlotReferences) -> None:
        """The worker has read them."""

    def lease_reads(self, borrower: str, keys: Sequence[ObjectKey], seconds: float, max_bytes: int) -> ReadLease:
        """Lease to another server what L1 has of these keys, up to `max_bytes` of slots, for `seconds`; gaps are allowed and
        nothing is loaded.  For the eviction policy it is one use.  Computes digests of objects that were not read by anything
        outside of this machine before: to be called on a thread that may take long."""

    def is_quick(self, payload_bytes: int) -> bool:
        """Whether `acquire` and `publish` of this many bytes of payload take microseconds.  False for more than a little
        where the server reads them then (`--l1-verify-reads`): a handler that may not wait leaves it to another thread."""

    def has_room(self, space: StoredSpace, chunks: int) -> bool:
        """True when this number of slots is free and allowed to the salt, so that `reserve` need neither allocate pages nor
        wait."""

    def reserve(
        self, worker: int, space: StoredSpace, chunk_hashes: Sequence[bytes], may_wait: Callable[[], bool] | None = None
    ) -> tuple[SlotReferences, Sequence[int]]:
        """Slots for those chunks that are neither stored nor being written, and their indexes: as far as there is room, a
        prefix of them.  With `may_wait`, it waits for room first, up to `--l1-allocation-wait-ms` and without any lock,
        as long as `may_wait()` is true, which is asked every few milliseconds."""

    def publish(self, references: SlotReferences, first_chunk: int, request_id: str) -> bool:
        """Every slot is filled: make it visible, and send it on to L2.  False when the references had run out;
        nothing was published then.  Policies get the request and the position in its prompt."""

    def is_live(self, references: SlotReferences) -> bool:
        """False once its deadline has passed: its slots are in quarantine until it is given back."""

    def using(self, references: SlotReferences) -> AbstractContextManager[bool]:
        """For a module that copies to or from the slots itself: within it they stay referenced, even if the worker
        leaves meanwhile.  Gives False when the references have ended or run out: the slots must not be touched then."""

    def discard(self, references: SlotReferences) -> None:
        """Free the slots unpublished."""

    def end_worker(self, worker: int) -> None:
        """The worker has unregistered or is known dead: it touches nothing any more."""

    def quarantine_worker(self, worker: int, ends_reads: bool) -> bool:
        """The worker has fallen silent and may still touch its slots: what it writes will not be published, and its slots are
        not reused until they are released or the worker ends.  With `ends_reads` only those that it writes.
        False when it held none of these."""

    def payload(self, slot: int) -> memoryview:
        """The payload bytes of a held slot.  Raises OSError where L1 is a file and the disk fails."""

    def payload_offset(self, slot: int) -> int:
        """Where that payload starts in L1's shared-memory segment."""

    def clear(self, force: bool) -> int:
        """Drop objects without references; with `force`, the others when their last reference is released.  Returns the
        number of objects."""
