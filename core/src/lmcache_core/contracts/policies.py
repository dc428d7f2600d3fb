"""The three policies.  They see facts, not machinery, and decide in batches.

Each policy object belongs to one controller thread, which is its only caller: no locks, and no work on a request's path.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lmcache_core.contracts.l2_adapter import Capability
from lmcache_core.model.bitmap import Bitmap
from lmcache_core.model.keys import KeySpace


class InsertFacts(NamedTuple):
    """What is known of a batch of objects that became visible in L1 together."""

    slot_bytes: int
    space: KeySpace
    first_chunk: int
    """Position of the batch's first chunk in its prompt; the others follow."""


class EvictionDemand(NamedTuple):
    """How many bytes are to be freed."""

    any_bytes: int
    """From slots of any size."""
    by_slot_bytes: Mapping[int, int]
    """And from slots of this size, because a store waits for one."""


class EvictionPolicy(ABC):
    """Which objects of L1 go first.  Objects are known by slot number, a small integer that is reused after removal."""

    @abstractmethod
    def on_insert(self, slots: Sequence[int], facts: InsertFacts) -> None:
        """These slots hold new objects."""

    @abstractmethod
    def on_access(self, slots: Sequence[int]) -> None:
        """These were hit, in prompt order.  Slots that the policy does not know are ignored."""

    @abstractmethod
    def on_remove(self, slots: Sequence[int]) -> None:
        """These are empty now (evicted or cleared).  Slots that the policy does not know are ignored."""

    @abstractmethod
    def victims(self, demand: EvictionDemand, may_evict: Callable[[int], bool]) -> Sequence[int]:
        """Slots to free, in order.  Must not name one that `may_evict` refuses; fewer than asked is fine.

        The policy keeps them until `on_remove` confirms: a victim may have been hit since, and then stays."""


class StoredObject(NamedTuple):
    """An object in L1 that could go to L2."""

    space: KeySpace
    chunk_hash: bytes
    object_bytes: int


class AdapterFacts(NamedTuple):
    """What a policy may know of an adapter; its index is its place in the cascade."""

    name: str
    capabilities: Capability
    healthy: bool


@dataclass(frozen=True, slots=True)
class StorePlan:
    """`targets[i]` are the indexes of the adapters that object i goes to."""

    targets: tuple[tuple[int, ...], ...]
    drop_from_l1: bool = False
    """True: objects leave L1 once every adapter has answered."""


class StorePolicy(ABC):
    """Which objects go to which adapters."""

    @abstractmethod
    def plan(self, objects: Sequence[StoredObject], adapters: Sequence[AdapterFacts]) -> StorePlan: ...


@dataclass(frozen=True, slots=True)
class PrefetchPlan:
    """`sources[i]` is the index of the adapter that key i is loaded from, or None to leave it."""

    sources: tuple[int | None, ...]
    retain: bool = False
    """False: loaded objects are temporary and leave L1 with their last reader."""


class PrefetchPolicy(ABC):
    """Where to load from."""

    @abstractmethod
    def plan(self, found: Sequence[Bitmap], adapters: Sequence[AdapterFacts]) -> PrefetchPlan:
        """`found[a]` has a bit for each key that adapter `a` has."""
