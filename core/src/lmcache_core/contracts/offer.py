"""What a plugin declares: the things that it offers, and the settings of the server that it brings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from lmcache_core.contracts.capability import Capability


@dataclass(frozen=True, slots=True)
class StorageFacts:
    """Which of an adapter's settings say where its objects are, by name: for `lmcache doctor`, `lmcache bench` and the checks
    of a start.  Nothing is guessed from the names of settings."""

    folders: tuple[str, ...] = ()
    """Settings that name folders."""
    devices: tuple[str, ...] = ()
    """Settings that name block devices, memory devices, or files in place of one; a path, or several."""
    capacity: tuple[str, ...] = ()
    """Settings that bound what is kept.  The last word of each is its unit: bytes, kb, mb, gb or tb, in powers of 1024."""
    direct_io: str = ""
    """The switch for I/O past the page cache."""
    io_engine: str = ""
    """The setting that is `posix`, `threads` or `io_uring`."""
    in_memory: bool = False
    """True: the medium is memory, even where a path names it."""
    shared: str = ""
    """The switch with which several servers use one backend."""
    owner: str = ""
    """The switch, or a property of the settings, that says whether this server may evict from a shared backend."""


class CheckResult(NamedTuple):
    """What an offer's `check` found, for `lmcache doctor`."""

    level: Literal["ok", "warn", "fail"]
    """warn: it works, but worse than it could; fail: the server does not start, or cannot use it."""
    text: str
    """What is so, in one line."""
    remedy: str = ""
    """What to do about it."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A named thing: an adapter type, a policy, a request module, a subscriber, a group of HTTP routes, a service.

    `settings` and `open` are import strings (`package.module:name`), so that listing offers imports neither the
    settings model nor a client library.  `settings` names a `PluginSettings` model (None: it takes no settings);
    `open` is called with the validated settings and the context of its kind, and returns the object.
    """

    name: str
    summary: str
    open: str
    settings: str | None = None
    capabilities: Capability = Capability.NONE
    optional_capabilities: Capability = Capability.NONE
    """What an adapter promises with some of its settings only: the opened one says which of them it has."""
    operations: tuple[str, ...] = ()
    """Names of operations that a request module answers, for the remedy where engines ask for them and it is not in use."""
    storage: StorageFacts | None = None
    """Where an L2 adapter's objects are."""
    check: str | None = None
    """Import string of `check(settings[, value_at]) -> Iterable[CheckResult]`.  `lmcache doctor` calls it for what is in use,
    transfer channels and commands: with validated settings, of a command None, and a `ServiceContext.value_at`."""
    default: bool = False
    """True: active without being named.  For subscribers, request modules, HTTP routes and services."""
    wraps: bool = False
    """True: an L2 adapter around another one, which its settings name; its capabilities follow from that one's."""

    def allows(self, capabilities: Capability) -> bool:
        """May an adapter of this offer declare these?  All that it has in any case, and of the others only optional ones."""
        if self.wraps:
            return True
        return capabilities & ~self.optional_capabilities == self.capabilities & ~self.optional_capabilities


@dataclass(frozen=True, slots=True)
class SettingGroup:
    """Settings of `lmcache server` that a plugin brings: one heading of `--help`.

    `model` and `apply` are import strings (`package.module:name`), imported when a server's settings are read.  `model` names
    a `PluginSettings` model.  Each of its fields has a default and a description, and is a flag, an `LMCACHE_` variable and a
    key of the `--config` file; `json_schema_extra={"flag": "word"}` names another flag.  `apply(values, given)` is called once,
    with the validated model and the names of the settings that were given a value.  It returns the settings of offers by
    "kind:name": an offer that is a key becomes active, and the values are those of its own settings model; None switches an
    offer off.  An L2 adapter takes no settings here: "l2_adapter:name" makes it the first of the cascade where `--l2-adapter`
    does not name its type.  It raises ConfigError for values that do not go together.
    """

    title: str
    model: str
    apply: str
