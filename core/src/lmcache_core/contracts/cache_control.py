"""What an operator may do to the objects in L1: find, list, drop, load and reference them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Literal, NamedTuple, Protocol

from lmcache_client.errors import ConfigError
from lmcache_client.layout import ObjectLayout
from lmcache_core.contracts.storage import Shard, StoredSpace
from lmcache_core.model.keys import KeySpace, ObjectKey


class AddressError(ConfigError):
    """These chunks cannot be named.  The message gives the reason and the remedy."""


class UnknownShapeError(AddressError):
    """No worker has registered the shape of the chunks of this model."""


class ChunkAddress(NamedTuple):
    """Chunks of one model and tenant, with exactly one of `token_ids` and `chunk_hashes`."""

    model_name: str
    world_size: int
    cache_salt: str
    token_ids: Sequence[int] | None = None
    """A prompt: its whole chunks are meant."""
    chunk_hashes: Sequence[bytes] | None = None
    """Any chunks, in any order."""
    layout: ObjectLayout | None = None
    """The shape of its chunks; None: the one that its workers have registered."""


class AddressedChunks(NamedTuple):
    """The same, as storage knows it: every shard of each chunk."""

    shards: tuple[Shard, ...]
    chunk_hashes: Sequence[bytes]
    is_prompt: bool
    """True: a chunk is of use only where all chunks before it are there."""


SlotUse = Literal["cached", "held", "writing", "leaving", "pinned"]
"""Ready and not referenced; ready and referenced; being written; no longer in the index, and freed with its last reference.
The owner of pins says which of the held ones are pinned."""


class CachedObject(NamedTuple):
    """An object in L1, as it was at one moment."""

    slot: int
    key: ObjectKey
    state: SlotUse
    payload_bytes: int
    slot_bytes: int


class LoadedChunks(NamedTuple):
    """Chunks that are in L1, held until the load ends."""

    slots: Sequence[int]
    """Of every shard of each chunk that is of use, those that were in L1 before included."""
    loaded: int
    """Objects that came from L2."""
    chunks: int
    """How far along the chunks it got: all of them, unless one of a prompt is missing."""
    is_late: bool
    """The time for a lookup was over before everything had come."""


class References(Protocol):
    """References to objects in L1, by slot: these are neither evicted nor taken by a quota until they are released, but
    count as used.  Safe from any thread."""

    @property
    def slots(self) -> Sequence[int]:
        """A slot once for each reference."""

    def acquire(self, shard: Shard, chunk_hashes: Sequence[bytes]) -> list[int]:
        """Add what L1 has of one shard, under the lock of L1.  Returns a slot or -1 for each chunk."""

    def release(self, slots: Sequence[int]) -> None:
        """Release those of these slots that are referenced."""

    def end(self) -> None:
        """Release everything, under the lock of L1."""


class PinTotals(NamedTuple):
    """All pins together; what several of them reference counts once."""

    pins: int
    objects: int
    size_bytes: int
    max_bytes: int


class PinOwner:
    """Keeps objects in L1 by references without a deadline.  The server calls these methods on any thread; they must not
    block.  This one keeps nothing; a service that pins objects has one of its own (`CacheControl.set_pin_owner`)."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes`: of all pins together."""
        self.max_bytes = max_bytes

    def slots(self) -> Collection[int]:
        """All pinned slots, as a copy: slabs that contain one do not move."""
        return ()

    def release(self, slots: Sequence[int]) -> None:
        """The objects of these slots were dropped: no pin may reference them any more."""

    def clear(self) -> None:
        """L1 is cleared by force: end all pins."""

    def expire(self) -> None:
        """Called about once per second."""

    def totals(self) -> PinTotals:
        return PinTotals(0, 0, 0, self.max_bytes)


class ChunkLoad(Protocol):
    """Some chunks on their way from L2 to L1: a prefetch like that of a lookup, with its time limit and its share of L1."""

    def begin(
        self, chunks: AddressedChunks, first_chunk: int, on_loaded: Callable[[LoadedChunks], None]
    ) -> LoadedChunks | None:
        """Once.  Returns what L1 has where nothing is to be loaded.  None: `on_loaded` is called later, on a thread of the
        server's, which it must not keep waiting.  `first_chunk`: their place in the prompt."""

    def share(self, references: References, slots: Sequence[int]) -> list[int]:
        """Add those of these slots that are still held to `references`.  Returns them."""

    def end(self) -> None:
        """Release what is held; what has come stays in L1 as cached objects.  A load that goes on is cancelled."""


class CacheControl(Protocol):
    """What L1 holds.  Safe from any thread."""

    @property
    def slot_numbers(self) -> int:
        """Every slot has a number below this one; it never shrinks."""

    def clear(self, force: bool) -> int:
        """As `contracts.storage.Storage.clear`; with `force`, pins end, too."""

    def objects(self) -> int:
        """Slots that are not free: objects that are cached, held, being written, or in quarantine."""

    def views(self, begin: int, end: int) -> list[CachedObject]:
        """What is in the slots of these numbers, free ones left out.  Holds the lock of L1: to be called for a slice at a
        time, with a pause between two.  An object stays in its slot as long as it is in L1."""

    def drop(self, space: KeySpace, chunk_hashes: Sequence[bytes], force: bool) -> tuple[int, int]:
        """Drop these objects; with `force` those that are held as well, which leave L1 when their last reader releases them,
        and pins release them at once.  Holds the lock of L1 as `views` does.  Returns how many were dropped, and how many
        stay because they are held."""

    def digest(self, spaces: Sequence[StoredSpace], chunk_hash: bytes) -> bytes | None:
        """The xxh3-128 of a payload; None where L1 does not have it.  Raises OSError where L1 is a file whose disk fails."""

    @property
    def pin_max_bytes(self) -> int:
        """What all pins together may have, in bytes of slots (`--l1-pin-max-ratio`)."""

    def set_pin_owner(self, owner: PinOwner) -> None:
        """From now on the server notifies `owner`.  To be called before it references anything.  Raises ConfigError where
        another service has called it."""

    def references(self, name: str) -> References:
        """None yet.  `name` is that of the pin, for logs and leases; its owner ends them."""

    def slot_bytes(self, slot: int) -> int:
        """Size of a slot that is referenced."""

    def slot_bytes_for(self, payload_bytes: int) -> int:
        """Size of the slot that an object with this payload gets."""

    def lost(self, slots: Sequence[int]) -> list[int]:
        """Those of these referenced slots whose object was dropped meanwhile."""

    def load(self, name: str) -> ChunkLoad:
        """To bring chunks from L2.  `name` is for logs and leases."""
