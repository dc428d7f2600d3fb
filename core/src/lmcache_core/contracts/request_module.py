"""A request module answers operations of the engine protocol."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import msgspec
from msgspec.msgpack import Ext

from lmcache_client.blend import RopeTables
from lmcache_client.errors import ProtocolError
from lmcache_client.external_hashes import EXTERNAL_NAME
from lmcache_client.layout import ChunkLayout
from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.conditions import ReportsConditions
from lmcache_core.contracts.events import Publisher
from lmcache_core.contracts.l1_memory import MemoryRegion
from lmcache_core.contracts.operation import Handler
from lmcache_core.contracts.residency import ResidencyFeed
from lmcache_core.contracts.storage import SlotReferences, Storage, StoredSpace
from lmcache_core.model.keys import HashChain, KeySpace

SPACES_REMEMBERED = 4096
_AMX_DTYPES: Final = frozenset({"bfloat16", "uint8", "float8_e4m3fn", "float8_e5m2"})
_AMX_SLOTS: Final = 32
"""vLLM's kernels use AMX for pages of these types whose block size is a multiple of this number of slots."""


class TokenIds(Protocol):
    """The token ids of a request as handlers get them, in an EngineKey: still encoded, and compared with what came before
    instead of decoded where that is possible."""

    @property
    def count(self) -> int:
        """How many there are."""

    def decode(self) -> list[int]:
        """The numbers.  Takes about 35 ns per token.  Raises ProtocolError when they are not integers."""


class ChunkHasher(Protocol):
    """Chunk hashes of token sequences.  What was hashed before is remembered by content, apart for each tenant, whatever
    request it came with, and used as far as a sequence is the same, byte for byte.  Safe from any thread."""

    def chunk_hashes(self, token_ids: TokenIds | msgspec.Raw, end: int) -> Sequence[bytes]:
        """Hashes of the whole chunks of the first `end` tokens.  `token_ids` is what an EngineKey has, or a msgspec.Raw
        with a msgpack array: that is read as a whole each time and not remembered, since it does not say whose it is.
        Raises ProtocolError when it is not a list of at least `end` token ids."""

    def listen(self, function: Callable[[ReadTokens], None]) -> Callable[[], None]:
        """Call `function` with chunks whose tokens are read from now on, before their hashes are used, on the thread that
        reads them: microseconds only.  What is remembered is read again, once.  Returns what ends it."""


class ObjectGroup(NamedTuple):
    """Layers whose chunks are one object.  Its number is its place among the groups of a worker."""

    layout: ChunkLayout
    window_chunks: int | None = None
    """None: a hit needs every chunk of a prefix.  Otherwise only this number at its end."""


@dataclass(slots=True, eq=False)
class Worker:
    """One registration of an engine worker.  `shard` is learned from its first transfer; everything else is fixed."""

    instance_id: int
    """The engine's name for it; a worker that left and came back has the same one, and is another `Worker`."""
    model_name: str
    world_size: int
    groups: tuple[ObjectGroup, ...]
    """At least one; more where layers that attend to a window only are stored apart."""
    shard: int | None
    inline: bool
    """True: chunks travel over the socket, because the worker cannot map L1 or L1 cannot be mapped."""
    proven: bool = False
    """True: it has been seen to use the transport that `inline` says."""
    connection: bytes = b""
    """Of a worker that copies to and from slots itself, where it registered or pinged last.  When it falls silent, its slots
    are in quarantine until this connection is closed, because a frozen thread of it may go on.  Empty: it touches none."""
    others: frozenset[bytes] = frozenset()
    """Connections on which it spoke before, and that may be open: of other processes with its id, perhaps."""
    fence_seconds: float = 0.0
    """Seconds of silence after which the worker has promised to begin no copy and to throw away what it has read.  0: it
    has promised nothing."""
    token: int = field(default_factory=itertools.count(1).__next__)
    """What its holds are held under: never used twice, so that ending one registration cannot touch the next."""

    @property
    def layout(self) -> ChunkLayout:
        """Of the first group, which for most workers is the only one."""
        return self.groups[0].layout


class ReadTokens(NamedTuple):
    """Chunks of a prompt whose tokens were read for the first time, or again after they were forgotten."""

    cache_salt: str
    hashes: Sequence[bytes]
    """Of all whole chunks of the prompt up to the last of these."""
    tokens: Sequence[memoryview]
    """Of the last of `hashes`: the token ids of each chunk, as msgpack integers one behind the other.  Valid during the call
    alone."""


class SpaceFields(NamedTuple):
    """What a request says about the keys it means, without shard and layout."""

    model_name: str
    cache_salt: str


class Workers(Protocol):
    """Who is registered.  Safe from any thread."""

    def find(self, instance_id: int) -> Worker | None: ...

    def register(self, worker: Worker) -> Worker:
        """Add a worker, or return the live one with that id, refreshed.  Raises ProtocolError when it is another."""

    def unregister(self, instance_id: int, reason: str) -> None:
        """Forget a worker, if there is one.  It touches no slot any more: its holds, and earlier ones of its id, end."""

    def seen(self, instance_id: int, pinged: bool, connection: bytes = b"") -> bool:
        """It lives, on this connection.  False once for an id that is not registered, so that it registers; then True."""

    def is_connected(self, connection: bytes) -> bool:
        """False when its client has closed it, or is dead."""

    def touch(self, worker: Worker) -> bool:
        """It has just spoken.  False when this registration has ended; nothing is remembered about it then."""

    def on_leave(self, function: Callable[[Worker], None]) -> None:
        """Call `function` with every worker that leaves, after its holds have ended."""

    def groups(self, model_name: str, world_size: int, shard: int) -> tuple[tuple[tuple[ObjectGroup, ...], ...], bool]:
        """The groups of each registration of this shard that differs from the others: under their layouts a chunk must be
        looked for.  And whether all of them must have it, or any (docs/internals/object-format.md, "Object key").
        A name with a variant is that of requests to the workers that registered without it."""

    @property
    def revision(self) -> int:
        """A number that is raised after each change of what `groups` returns."""

    def learn_shard(self, worker: Worker, shard: int) -> None:
        """Its first transfer says which shard it is, if it did not say so itself."""

    def model_names(self, served: str, world_size: int) -> tuple[str, ...]:
        """The names under which workers of this served name have registered, sorted."""


class PageMover(Protocol):
    """Moves tokens between stored chunks and the pages of workers that let the server copy.  Safe from any thread.  Raises
    ProtocolError that says what is wrong, with nothing changed."""

    def check_connection(self, worker: Worker, connection: bytes) -> None:
        """Raises when the worker speaks on another connection: what comes over this one is about other pages."""

    def register_rows(
        self, instance_id: int, connection: bytes, tensors: Sequence[Ext], model_name: str, world_size: int
    ) -> None:
        """A worker whose K and V are rows, one for each token: of each layer a tensor `[K and V][row][elements, or heads and
        elements]`.  Each row is a block.  It leaves by `Workers.unregister`."""

    def copy_rows(
        self,
        worker: Worker,
        held: SlotReferences,
        rows: Sequence[int],
        into_slots: bool,
        ready: bytes,
        finish: Callable[[bool], bool],
    ) -> tuple[bytes, bool]:
        """Fill slots from such rows, or rows from slots.  A row for each token of each chunk; -1: zeros in a slot, nothing in
        the buffer.  What it returns, and `finish`, are as for `move`."""

    def share_rope(self, worker: Worker, rope: RopeTables) -> None:
        """How K of a worker depends on its position, until the worker leaves."""

    def drop_rope(self, worker: Worker) -> None: ...

    def move(
        self,
        worker: Worker,
        held: SlotReferences,
        places: Sequence[tuple[int, int]],
        block_ids: Sequence[Sequence[int]],
        ready: bytes,
        finish: Callable[[bool], bool],
    ) -> tuple[bytes, bool]:
        """The chunk in each slot from the old to the new position of its first token: all, or nothing.  Blocks are those of
        a request, by engine group.  Returns the event that the worker waits for, and False after a failure.  Unless this
        raises, `finish` is called once with whether the bytes arrived, then or later; the references are the caller's."""


@dataclass(frozen=True, slots=True)
class ModuleContext:
    """The server, as far as request modules may see it."""

    storage: Storage
    hasher: ChunkHasher
    workers: Workers
    chunk_tokens: int
    chain: HashChain
    segment: str | None
    """Name of L1's shared-memory segment; None when L1 cannot be mapped."""
    l1_bytes: int
    clock: Clock
    events: Publisher
    admits_salt: Callable[[str], bool] = lambda cache_salt: True
    """Ask for every request.  False: it is answered as if nothing were cached, and nothing is stored for it."""
    instance_id: str = ""
    boot_id: str = ""
    operations: Callable[[], Sequence[str]] = tuple
    """Names of everything that is answered, sorted.  Empty until all modules are open."""
    worker_timeout_seconds: float = 0.0
    """Seconds of silence after which a worker counts as dead; 0: never."""
    features: Callable[[], Sequence[str]] = tuple
    """What the modules add to the protocol (`RequestModule.features`).  Empty until all modules are open."""
    residency: ResidencyFeed | None = None
    """What L1 has."""
    region: MemoryRegion | None = None
    """L1's memory, for modules that register it with a device; valid until `RequestModule.close` has returned."""
    has_amx: bool = False
    """Whether this machine's processor has AMX, as an engine finds it."""
    page_movers: list[PageMover] = field(default_factory=list)
    """What modules move tokens with.  One that can adds itself when it is opened; others look when a request comes."""
    _spaces: dict[tuple[SpaceFields, int, int, bytes], StoredSpace] = field(default_factory=dict, repr=False)

    def order_by_processor(self, dtype: str, block_slots: int) -> str:
        """The order of elements in blocks of host pages (`ObjectLayout.order`) for an engine of this machine that does not say
        it.  With AMX, vLLM packs K and V in tiles; without it, the order is empty (docs/engines/kv-layouts.md)."""
        packed = self.has_amx and dtype in _AMX_DTYPES and block_slots > 0 and block_slots % _AMX_SLOTS == 0
        return "amx" if packed else ""

    def space(self, fields: SpaceFields, kv_rank: int, layout: ChunkLayout, object_group: int = 0) -> StoredSpace:
        """The key space of one object group of one shard in one layout.  The latest ones are remembered.  Raises
        ProtocolError where the key of an object would be too long.  Any thread."""
        identity = (fields, kv_rank, object_group, layout.fingerprint)
        known = self._spaces.get(identity)
        if known is None:
            model, salt = fields
            chain = HashChain.EXTERNAL if EXTERNAL_NAME.search(model) else self.chain
            try:
                space = KeySpace(model, kv_rank, object_group, salt, self.chunk_tokens, chain, layout.fingerprint)
            except ValueError as error:
                raise ProtocolError(str(error)) from None
            known = StoredSpace(space, layout.payload_bytes)
            if len(self._spaces) >= SPACES_REMEMBERED:
                self._spaces.clear()
            self._spaces[identity] = known
        return known


class RequestModule(ReportsConditions, ABC):
    """Some operations, and whatever state they share."""

    features: Sequence[str] = ()
    """Optional parts of the protocol that it serves: what `get_experimental` answers."""

    @abstractmethod
    def handlers(self) -> Sequence[Handler]:
        """Asked once, when the server starts."""

    def status(self) -> dict[str, object]:
        """What an operator should see of this module, under its name in `/status`."""
        return {}

    def close(self) -> None:
        """The last request was answered."""
