"""What an operator may do to the objects in L1: find, list, drop, load and pin them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

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


class CachedObject(NamedTuple):
    """An object in L1, as it was at one moment."""

    slot: int
    key: ObjectKey
    state: str
    """cached, held, pinned, writing or leaving."""
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


class ChunkLoad(Protocol):
    """Some chunks on their way from L2 to L1: a prefetch like that of a lookup, with its time limit and its share of L1."""

    def begin(
        self, chunks: AddressedChunks, first_chunk: int, on_loaded: Callable[[LoadedChunks], None]
    ) -> LoadedChunks | None:
        """Once.  Returns what L1 has where nothing is to be loaded.  None: `on_loaded` is called later, on a thread of the
        server's, which it must not keep waiting.  `first_chunk`: their place in the prompt."""

    def pin(self, pin: Any, slots: Sequence[int]) -> int | None:
        """Add those of these slots that are still held to a pin of `PinControl.open`.  Returns how many; None when the pin has
        ended.  Raises PinRefusedError, with nothing added."""

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

    def load(self, name: str) -> ChunkLoad:
        """To bring chunks from L2.  `name` is for logs and leases."""


class PinRefusedError(ConfigError):
    """This cannot be pinned.  The message gives the reason and the remedy."""


class PinSubject(NamedTuple):
    """Whose chunks a pin holds."""

    model_name: str
    cache_salt: str


class PinView(NamedTuple):
    """A pin, as it was at one moment."""

    name: str
    subject: PinSubject
    objects: int
    size_bytes: int
    """Of the slots, what other pins hold, too, included."""
    expires_in_seconds: float | None
    """None: it stays until it is released."""


class PinTotals(NamedTuple):
    """All pins together; what several of them hold counts once."""

    pins: int
    objects: int
    size_bytes: int
    max_bytes: int


class Pinned(NamedTuple):
    """The result of one request to pin."""

    chunks: int
    """Of which every shard is pinned now."""
    objects: int
    """Shards of chunks that are pinned now, whether they were before or not."""


class PinControl(Protocol):
    """Chunks that stay in L1, by names.  Safe from any thread."""

    def pin(self, name: str, subject: PinSubject, ttl_seconds: float | None, chunks: AddressedChunks) -> Pinned:
        """Add what L1 has of these chunks to the pin of this name, which is made where there is none: all of it, or
        nothing.  Raises PinRefusedError as `open` does, and when it is more than may be pinned."""

    def open(self, name: str, subject: PinSubject, ttl_seconds: float | None) -> Any:
        """To be added to until `close`: the pin of this name, which has this time to live from now on, or a new one.
        Raises PinRefusedError when there are too many, and when that name is another model's or tenant's."""

    def close(self, pin: Any) -> None:
        """Once for each `open`.  A pin that holds nothing, and that is open for no other caller, ends."""

    def check_size(self, chunks: AddressedChunks) -> None:
        """Raises PinRefusedError for more than all pins together may hold."""

    def unpin(self, name: str) -> PinView | None:
        """What the pin held; None where there is no such pin."""

    def everything(self) -> list[PinView]:
        """In the order of their names."""

    def totals(self) -> PinTotals: ...
