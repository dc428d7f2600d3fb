"""What an operator's plugin may see of a running server's parts, and do to them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from lmcache_client.errors import ConfigError, LMCacheError
from lmcache_core.contracts.cache_control import AddressedChunks, CacheControl, ChunkAddress
from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.events import Publisher
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.results import KeyPage, Outcome

Opened = TypeVar("Opened")


class NotNowError(LMCacheError):
    """The request is valid, and cannot be done in the present state.  The message gives the reason and the remedy."""


class OpeningAbandonedError(NotNowError):
    """A plugin took too long to open something."""


class NoSuchAdapterError(LMCacheError):
    """The message names the adapters that exist."""


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


class FreezeControl(Protocol):
    """For work that nothing new may come into.  Stores are refused as `frozen`, lookups see L1 only, and what is under way goes
    on.  It lasts as long as that of any holder, who is named, does.  Safe from any thread."""

    def begin(self, seconds: float | None, holder: str = "", /) -> None:
        """For this time from now on, whatever this holder asked for before; None: until it calls `end`."""

    def end(self, holder: str = "", /) -> None: ...


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


class Opening(Protocol):
    """Opens a part of a plugin for a caller that decides how long that may take."""

    def __call__(
        self, what: str, open_it: Callable[[], Opened], too_late: Callable[[Opened | None], None], /
    ) -> Opened:
        """What `open_it` returns.  Raises what it raises, and OpeningAbandonedError for an end of the wait: `too_late` is then
        called once `open_it` has ended, with what it returned, or with None where it failed.  `what`: for messages."""


def open_without_limit(what: str, open_it: Callable[[], Opened], too_late: Callable[[Opened | None], None]) -> Opened:
    """An `Opening` that waits on the caller's thread."""
    return open_it()


class AdapterState(msgspec.Struct, frozen=True):
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
    borrowed_bytes: int
    """Memory of L1 that it reads or writes now, or has not released."""
    seconds_left: float | None
    """Until the deadline of its removal."""
    drained: bool | None
    """Of a removal: True if every waiting store reached it; None until then."""
    abandoned: int
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

    def add(self, values: Mapping[str, Any], opening: Opening = open_without_limit) -> AdapterState:
        """Open one, given as for `--l2-adapter`; it is in use when this returns.  Blocks while it is opened.  Raises
        ConfigError for wrong values, NotNowError where it cannot be opened.  The name of one that was abandoned is free again
        once its opening has ended."""

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

    def change(self, values: Mapping[str, Any], opening: Opening = open_without_limit) -> list[ChangedSetting]:
        """Change all of these, or none.  Blocks until they apply.  Returns those whose value differs now.  Raises
        ConfigError for an invalid value of a setting, NotNowError for what cannot be changed now, or not at all."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ServerControl:
    """What an operator may do to a running server.  Everything here is safe from any thread, and may take locks or wait: it
    is not for an event loop."""

    quotas: QuotaControl
    cache: CacheControl
    resolve: Callable[[ChunkAddress], AddressedChunks]
    """The chunks that an address names.  Raises AddressError where their shape is not known, or the tokens are invalid."""
    freeze: FreezeControl
    adapters: AdapterControl
    settings: SettingControl
    events: Publisher
    """Notifies subscribers of what an operator changed: SettingChanged."""
    plugins: Callable[[], Sequence[Mapping[str, Any]]]
    """Each plugin as in `lmcache plugins list --json`, without tracebacks and with `hooks`, those of it that are called."""
    native: bool
    """True: compiled inner loops are in use."""
    hide: Callable[[bytes], bytes]
    """Replaces secrets of the configuration in an answer."""
    hide_also: Callable[[Collection[str]], None]
    """Adds secrets, which are then hidden in logs and answers alike."""
