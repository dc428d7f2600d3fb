"""Eviction of one L2 adapter: the field `eviction` of its `--l2-adapter` object.

A plugin offers it with the optional hook `lmcache_l2_evictions`.  The object's `type` names the offer; without one it is
`watermark`.  `open(settings, L2EvictionContext) -> L2Eviction` is called for each adapter that has the field, once the adapter
is open.  `settings` is of a model that extends `L2EvictionSettings`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec
from pydantic import Field

from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.events import Publisher
from lmcache_core.contracts.policies import EvictionPolicy
from lmcache_core.contracts.settings import PluginSettings
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.results import KeyPage, Outcome, Usage

Result = TypeVar("Result")


class L2EvictionSettings(PluginSettings):
    """What every eviction of L2 is given.  The server opens the policy."""

    eviction_policy: str | dict[str, Any] = Field(
        description="Which objects go first: a name, or a JSON object with its `type` and its settings."
    )


class EvictedAdapter(Protocol):
    """The adapter whose objects are evicted.  Safe from any thread; only `list_keys` may block."""

    @property
    def name(self) -> str: ...

    @property
    def capabilities(self) -> Capability: ...

    @property
    def answers(self) -> bool:
        """False while a job is overdue: then it is given nothing more."""

    @property
    def is_learning(self) -> bool:
        """True while it declares USAGE and does not know its usage yet."""

    def usage(self) -> Usage | None:
        """Bytes and objects that it has; None where it does not know or fails."""

    def in_use(self) -> set[ObjectKey]:
        """Keys of stores and loads under way, which are not to be deleted."""

    def list_keys(self, cursor: str | None, limit: int) -> KeyPage | None:
        """As `L2Adapter.list_keys`; None where it fails, and once the adapter is being closed."""

    def delete_soon(self, keys: Sequence[ObjectKey], on_answer: Callable[[Sequence[Outcome]], None]) -> None:
        """Begin to delete these.  `on_answer` is called once, with an outcome for each: at the deadline at the latest, on a
        thread that it must not keep waiting."""


class PolicySeat(Protocol):
    """An eviction policy whose failures are counted.  One that fails again and again is replaced by the built-in one."""

    policy: EvictionPolicy
    """The one that decides now."""
    take_over: Callable[[EvictionPolicy], None] | None
    """Called with the built-in policy that is to replace one that failed: notify it of all objects, then `take` it."""

    def call(self, method: str, function: Callable[[EvictionPolicy], Result], default: Result) -> Result:
        """What `function` returns, which calls this method of the policy; `default` where it raises."""

    def take(self, policy: EvictionPolicy, *, because_it_failed: bool = False) -> None:
        """This one decides from now on."""


class L2EvictionContext(msgspec.Struct, frozen=True):
    """What the server gives an eviction of one adapter."""

    adapter: EvictedAdapter
    policy: PolicySeat
    """Belongs to the thread of the eviction that calls it."""
    clock: Clock
    events: Publisher


@dataclass(slots=True)
class L2EvictionCounts:
    """Objects since the start."""

    evicted: int = 0
    evicted_bytes: int = 0
    gone: int = 0
    """Were to be deleted, and were not there any more."""
    refused: int = 0
    """Could not be deleted then, because they were pinned; counted each time."""
    failed: int = 0
    """The adapter failed to delete them; counted each time."""


class AdapterListener(Protocol):
    """Notified of the objects that an adapter has.  Called on the client's threads; must neither block nor raise."""

    @abstractmethod
    def stored(self, objects: Sequence[tuple[ObjectKey, int]]) -> None:
        """The adapter has these objects now.  The numbers are their sizes in bytes."""

    @abstractmethod
    def may_have_stored(self, objects: Sequence[tuple[ObjectKey, int]]) -> None:
        """It was over time with these, and has them or has them not; as long as their buffers are borrowed, they may come."""

    @abstractmethod
    def hit(self, keys: Sequence[ObjectKey]) -> None:
        """A lookup found these."""

    @abstractmethod
    def deleting(self, keys: Sequence[ObjectKey]) -> None:
        """An operator is about to delete these; `deleted` follows."""

    @abstractmethod
    def deleted(self, keys: Sequence[ObjectKey], gone: Sequence[ObjectKey]) -> None:
        """That is over.  Some of them are gone, unless they have come again since."""


class L2Eviction(AdapterListener):
    """Deletes objects of one adapter before it is full."""

    counts: L2EvictionCounts
    """Any thread may read them."""

    @abstractmethod
    def threads(self) -> Mapping[str, Callable[[], None]]:
        """Bodies of its threads, by name.  The server runs and supervises them: one that raises is called again."""

    @abstractmethod
    def stop(self) -> None:
        """End the threads soon.  Any thread."""

    @abstractmethod
    def status(self) -> Mapping[str, Any]:
        """JSON values for `/status`, the counts included.  Any thread."""
