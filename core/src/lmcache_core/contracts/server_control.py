"""What an operator's plugin may see of a running server's parts, and do to them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from lmcache_client.errors import ConfigError, LMCacheError
from lmcache_client.layout import ObjectLayout
from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.storage import Shard, StoredSpace
from lmcache_core.model.keys import KeySpace, ObjectKey
from lmcache_core.model.results import KeyPage, Outcome


class NotNowError(LMCacheError):
    """The request is valid, and cannot be done in the present state.  The message gives the reason and the remedy."""


class NoSuchAdapterError(LMCacheError):
    """The message names the adapters that exist."""


class UnknownLoggerError(LMCacheError):
    """No logger has this name."""


class QuotaRefusedError(ConfigError):
    """This server cannot keep the quota.  The message gives the reason and the remedy."""


class Quota(NamedTuple):
    """A salt's limit and use of L1, in bytes."""

    salt: str
    limit_bytes: int | None
    """Its own limit, else the default one; None: unlimited."""
    used_bytes: int
    is_own: bool
    """False: the limit is the default one."""


class QuotaControl(Protocol):
    """Limits of cache salts.  Safe from any thread."""

    @property
    def default_bytes(self) -> int | None:
        """The limit of salts without one of their own; None: unlimited."""

    def get(self, salt: str) -> Quota:
        """Of any salt, whether it has a limit or anything stored or not."""

    def everything(self) -> Sequence[Quota]:
        """Every salt that has a limit of its own or anything in L1."""

    def set(self, salt: str, limit_bytes: int) -> None:
        """Raises QuotaRefusedError."""

    def delete(self, salt: str) -> bool:
        """False when the salt had no limit of its own."""


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


class AdapterAccess(Protocol):
    """One L2 adapter, to list and delete what it holds.  Its calls may block for as long as the backend does."""

    @property
    def name(self) -> str: ...

    @property
    def capabilities(self) -> Capability: ...

    @property
    def is_shut(self) -> bool:
        """True: it was removed, or is about to be."""

    def list_keys(self, cursor: str | None, limit: int) -> KeyPage | None:
        """As `L2Adapter.list_keys`; None where it fails, which is logged, and once the adapter is being closed."""

    def delete(self, keys: Sequence[ObjectKey], is_over: Callable[[], bool]) -> Sequence[Outcome] | None:
        """Delete these objects as one job.  Returns its outcomes; None when `is_over()`, which is asked a few times a second,
        becomes true before they are there."""

    def delete_other_versions(self) -> int | None:
        """As `L2Adapter.delete_other_versions`; None as for `list_keys`."""


@dataclass(frozen=True, slots=True)
class AdapterState:
    """One L2 adapter, as it was at one moment."""

    name: str
    type: str
    index: int
    """Unique: no other adapter of this server has it, or had it."""
    state: Literal["serving", "draining", "removing", "closing", "lingering", "removed"]
    """`lingering`: it was closed and still has memory of L1, which stays in quarantine until the adapter releases it."""
    healthy: bool
    objects_left: int
    """Stores on their way to it, waiting or submitted."""
    bytes_left: int
    jobs_in_flight: int
    lent_bytes: int
    """Memory of L1 that it reads or writes now, or has not released."""
    seconds_left: float | None
    """Until the deadline of its removal."""
    drained: bool | None
    """Of a removal: True if every waiting store reached it; None until then."""
    given_up: int
    """Objects of jobs that were cancelled at the deadline."""
    eviction_policy: str | None
    settings: Mapping[str, Any]
    """As they were given, without secrets."""


class AdapterControl(Protocol):
    """The L2 adapters of a running server.  Safe from any thread."""

    def clients(self) -> Sequence[AdapterAccess]:
        """Of all adapters, in the order in which loads ask them."""

    def states(self) -> list[AdapterState]:
        """Of all adapters, in the order in which loads ask them."""

    def state(self, name: str) -> AdapterState:
        """Of one that exists, or was removed recently.  Raises NoSuchAdapterError."""

    def add(self, values: Mapping[str, Any]) -> AdapterState:
        """Open one, given as for `--l2-adapter`; it is in use when this returns.  Blocks while it is opened.  Raises
        ConfigError for wrong values, NotNowError where it cannot be opened."""

    def drain(self, name: str) -> AdapterState:
        """Store nothing new there from now on.  Raises NoSuchAdapterError, NotNowError while it is removed."""

    def resume(self, name: str) -> AdapterState:
        """Undo a drain.  Raises as `drain` does."""

    def remove(self, name: str, deadline_seconds: float, force: bool) -> AdapterState:
        """Begin to remove it, or shorten the deadline of a removal that has begun.  Returns at once.  Raises
        NoSuchAdapterError."""


class ShownSetting(NamedTuple):
    """A setting and its source.  `value` is JSON, without secrets."""

    name: str
    value: Any
    source: str
    """flag, environment, file, default, or runtime for a value that was changed while the server ran."""
    given_by: str
    """The flag, the variable or the file; empty for a default."""
    default: Any


class ChangedSetting(NamedTuple):
    """Values are JSON, without secrets."""

    name: str
    before: Any
    after: Any
    state: Literal["applied", "under way"] = "applied"
    """`under way`: a new eviction policy is still being notified of the objects in L1."""


class SettingControl(Protocol):
    """The settings of a running server.  Safe from any thread."""

    def shown(self) -> Sequence[ShownSetting]:
        """Every setting, in the order of `lmcache server --help`."""

    def running(self) -> Mapping[str, Any]:
        """The settings that can be changed, by name, as they apply now, without secrets."""

    def change(self, values: Mapping[str, Any]) -> list[ChangedSetting]:
        """Change all of these, or none.  Blocks until they apply.  Returns those whose value differs now.  Raises
        ConfigError for what is no value of a setting, NotNowError for what cannot be changed now, or not at all."""


class LoggerLevel(NamedTuple):
    """Names of levels, such as INFO."""

    logger: str
    own: str | None
    """None: the level comes from the logger above."""
    effective: str


class LogControl(Protocol):
    """How much is logged.  Safe from any thread."""

    def own(self) -> Sequence[LoggerLevel]:
        """Loggers with a level of their own, the root among them."""

    def set(self, logger: str, level: str | None) -> LoggerLevel:
        """Raises UnknownLoggerError."""


class ThreadRow(NamedTuple):
    """One thread of the process."""

    name: str
    native_id: int | None
    daemon: bool
    python: bool
    state: str | None
    """The kernel's letter: R runs, S sleeps, D waits for a disk."""
    cpu_seconds: float | None
    """Used so far; None, as `state`, where the kernel does not say."""
    supervised: Mapping[str, Any] | None
    """What the supervisor says of it; None: it is not restarted."""
    stack: Sequence[str]
    """Module, line and function of each call, innermost last; never values."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ServerControl:
    """What an operator may do to a running server.  Everything here is safe from any thread, and may take locks or wait: it
    is not for an event loop."""

    quotas: QuotaControl
    cache: CacheControl
    pins: PinControl
    resolve: Callable[[ChunkAddress], AddressedChunks]
    """The chunks that an address names.  Raises AddressError where their shape is not known, or the tokens are invalid."""
    adapters: AdapterControl
    settings: SettingControl
    log_levels: LogControl
    plugins: Callable[[], Sequence[Mapping[str, Any]]]
    """Each plugin as in `lmcache plugins list --json`, without tracebacks and with `hooks`, those of it that are called."""
    threads: Callable[[], Sequence[ThreadRow]]
    """Every thread of the process, those of libraries included, the busiest first."""
    native: bool
    """True: compiled inner loops are in use."""
    hide: Callable[[bytes], bytes]
    """Replaces secrets of the configuration in an answer."""
    hide_also: Callable[[Collection[str]], None]
    """Adds secrets, which are then hidden in logs and answers alike."""
