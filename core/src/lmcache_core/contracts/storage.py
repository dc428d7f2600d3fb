"""The storage verbs that request modules use.  Chunks are named by key space and chunk hash, always in batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from lmcache_core.model.keys import KeySpace


class StoredSpace(NamedTuple):
    """A key space, and how large one object of it is without its header page."""

    space: KeySpace
    payload_bytes: int


class Shard(NamedTuple):
    """One shard of a lookup: a chunk counts when it is there in any one of these spaces.

    A shard whose workers are known to use several layouts is given once for each of them, with one space."""

    spaces: tuple[StoredSpace, ...]


class LookupRequest(NamedTuple):
    """Find the longest prefix of `chunk_hashes` that every shard has, bring it into L1 and hold it for `readers` reads
    of each chunk.  A newer lookup with the same connection and request id replaces the older one."""

    connection: bytes
    request_id: str
    shards: tuple[Shard, ...]
    chunk_hashes: Sequence[bytes]
    readers: int


@dataclass(frozen=True, slots=True, eq=False)
class Hold:
    """Slots that a worker reads or fills now.  They stay where they are until it is given back."""

    slots: tuple[int, ...]
    grant: Any
    """The storage's own record of it."""


class Storage(Protocol):
    """Safe from any thread.  Nothing here waits for a tier.  `worker` is the token of a registration."""

    def lookup(self, request: LookupRequest) -> None:
        """Start a lookup.  Its answer is had by `lookup_result` or `on_lookup`."""

    def lookup_result(self, connection: bytes, request_id: str) -> int | None:
        """Chunks found and held; None while the lookup runs.  Given once; 0 afterwards and for unknown lookups."""

    def on_lookup(self, connection: bytes, request_id: str, function: Callable[[int], bool]) -> None:
        """Call `function` with what `lookup_result` would give, as soon as that is not None.  The answer counts as given
        when it returns True."""

    def free_lookup(self, connection: bytes, request_id: str, first_chunk: int, end_chunk: int) -> None:
        """The request does not need these chunks of its lookup any more."""

    def end_lookup(self, connection: bytes, request_id: str) -> None:
        """The request is over: let go of what no worker has picked up."""

    def renew_lookups(self, connection: bytes) -> None:
        """Whoever asked for these lookups is alive: move their deadlines."""

    def acquire(
        self, worker: int, request_id: str, space: StoredSpace, chunk_hashes: Sequence[bytes], first_chunk: int
    ) -> Hold | None:
        """Hold chunks for a worker to read, taking over what its request's lookup held; None when one is not there."""

    def release(self, hold: Hold) -> None:
        """The worker has read them."""

    def has_room(self, space: StoredSpace, chunks: int) -> bool:
        """Are there free slots for so many chunks, so that `reserve` need not allocate pages?"""

    def reserve(self, worker: int, space: StoredSpace, chunk_hashes: Sequence[bytes]) -> tuple[Hold, Sequence[int]]:
        """Slots for those chunks that are not there and nobody is writing, as far as there is room, and their indexes."""

    def publish(self, hold: Hold, first_chunk: int, request_id: str) -> bool:
        """Every slot of the hold is filled: make it visible, and send it on to L2.  False when the hold had run out;
        nothing was published then.  Policies are told where in which request's prompt it stands."""

    def is_live(self, hold: Hold) -> bool:
        """False once its deadline has passed: its slots are in quarantine until it is given back."""

    def using(self, hold: Hold) -> AbstractContextManager[bool]:
        """For a module that copies to or from the slots itself: within it they stay the hold's own, even if the worker
        leaves meanwhile.  Gives False when the hold has ended or run out: the slots must not be touched then."""

    def discard(self, hold: Hold) -> None:
        """Free the slots unpublished."""

    def end_worker(self, worker: int) -> None:
        """The worker has unregistered or is known dead: it touches nothing any more."""

    def payload(self, slot: int) -> memoryview:
        """The payload bytes of a held slot."""

    def payload_offset(self, slot: int) -> int:
        """Where that payload starts in L1's shared-memory segment."""

    def clear(self, force: bool) -> int:
        """Drop what nobody holds; with `force`, the rest as soon as it is let go.  Returns the number of objects."""
