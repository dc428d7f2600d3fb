"""The three policies.  They see facts, not machinery, and decide in batches.

Each policy object belongs to one controller thread, which is its only caller: no locks, and no work on a request's path.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.conditions import ReportsConditions
from lmcache_core.kernels.choice import Kernels
from lmcache_core.model.keys import KeySpace
from lmcache_core.model.results import Bitmap


class RequestFacts(NamedTuple):
    """What is known of the request that chunks were stored or hit for."""

    seconds: float = 0.0
    """Monotonic time of the insert or access."""
    request: int = 0
    """The same number for everything that one request does; 0 where the request is not known."""
    prompt_chunks: int = 0
    """Whole chunks of its prompt, as its lookup had them; 0 where there was no lookup."""
    hit_chunks: int = 0
    """How many of them that lookup found.  The rest had to be computed: what the request adds."""


class InsertFacts(NamedTuple):
    """What is known of a batch of objects that became visible in L1 together."""

    slot_bytes: int
    space: KeySpace
    """Model, shard, salt and chunk size; the same object for every batch of one space."""
    first_chunk: int
    """Position of the batch's first chunk in its prompt; the others follow."""
    keys: Sequence[bytes] = ()
    """Identities, one per slot: an object that was evicted and comes back has the same one.  For ghost lists."""
    request: RequestFacts = RequestFacts()


class AccessFacts(NamedTuple):
    """What is known of a batch of objects that a lookup hit."""

    first_chunk: int = 0
    """Position of the batch's first chunk in its prompt; the others follow."""
    request: RequestFacts = RequestFacts()


NO_SALTS: Mapping[str, int] = MappingProxyType({})


class EvictionDemand(NamedTuple):
    """How many bytes are to be freed.  The three add up, and are served in this order: by salt, by size, any."""

    any_bytes: int
    """From slots of any size."""
    by_slot_bytes: Mapping[int, int]
    """And from slots of this size, because a store waits for one."""
    by_salt: Mapping[str, int] = NO_SALTS
    """And from objects of this salt, because it has more than its quota, or wants to."""


class EvictionPolicy(ReportsConditions, ABC):
    """Which objects go first: of L1, or of one adapter with an `eviction` (where places in prompts are not known, and all
    are 0).  Objects are known by slot number, a small integer that is reused after removal.  One that follows another
    while the server runs gets what L1 holds through `on_insert`, object by object, in order of eviction."""

    evicts: bool = True
    """False: it leaves demands unmet although slots could go."""
    keeps_hits: bool = True
    """False: what is hit again and again may be the first to go, as with MRU.  The suite holds all others to it."""
    isolates_salts: bool = False
    """True: it serves `EvictionDemand.by_salt` from objects of that salt only.  Quotas need that."""

    def use_kernels(self, kernels: Kernels) -> None:
        """Called before anything else, where there is a server: the inner loops that it runs on, compiled where it can.  A
        policy may use them, and works without this call."""

    @abstractmethod
    def on_insert(self, slots: Sequence[int], facts: InsertFacts) -> None:
        """These slots hold new objects."""

    @abstractmethod
    def on_access(self, slots: Sequence[int], facts: AccessFacts) -> None:
        """These were hit by one lookup, in prompt order.  Slots that the policy does not know are ignored.

        A hit is reported once for each lookup, not again when workers read the chunks."""

    @abstractmethod
    def on_remove(self, slots: Sequence[int]) -> None:
        """These are empty now (evicted or cleared).  Slots that the policy does not know are ignored."""

    @abstractmethod
    def victims(self, demand: EvictionDemand, may_evict: Callable[[int], bool]) -> Sequence[int]:
        """Slots to free, in order.  Must not name one that `may_evict` refuses; fewer than asked is fine.

        The policy keeps them until `on_remove` confirms: a victim may have been hit since, and then stays; and sometimes
        core only wants to know what would leave next, because neighbours in memory leave together, or the order of
        everything (with a `may_evict` that refuses nothing), because another policy follows this one."""


class StoredObject(NamedTuple):
    """An object in L1 that could go to L2."""

    space: KeySpace
    """Users know its model as `parse_model_name(space.model_name).served`; the whole name says what the bytes mean, too."""
    chunk_hash: bytes
    object_bytes: int
    hit: bool = False
    """False: it has just been stored in L1.  True: it has been hit there, and the policy wants to hear of that."""
    chunk: int = 0
    """Its position in its prompt, in chunks; in a sparse lookup, among those that it asked for."""
    request: RequestFacts = RequestFacts()
    """Of the request that stored or hit it: length of its prompt, and how much of that was a hit.  Its salt is in `space`."""


class AdapterFacts(NamedTuple):
    """What a policy may know of an adapter; its index is its place in the cascade."""

    name: str
    capabilities: Capability
    healthy: bool


class StorePlan(msgspec.Struct, frozen=True):
    """`targets[i]` are the indexes of the adapters that object i goes to."""

    targets: tuple[tuple[int, ...], ...]
    drop_from_l1: bool = False
    """True: objects leave L1 once every adapter has answered, or they were dropped because it is too slow."""


class StorePolicy(ReportsConditions, ABC):
    """Which objects go to which adapters.  They may be others from one call to the next, because adapters come and go; one
    that is being drained is shown as not healthy."""

    plans_hits: bool = False
    """True: objects are planned again when a lookup hits them in L1, unless they are on their way just then.  It costs a
    little for every hit, on the store controller's thread."""

    @abstractmethod
    def plan(self, objects: Sequence[StoredObject], adapters: Sequence[AdapterFacts]) -> StorePlan: ...


class PrefetchPlan(msgspec.Struct, frozen=True):
    """`sources[i]` is the index of the adapter that key i is loaded from, or None to leave it.  Where that adapter fails,
    the others that have the key stand in for it, in the order of the cascade."""

    sources: tuple[int | None, ...]
    retain: bool = False
    """False: loaded objects are temporary and leave L1 with their last reader."""
    declined: tuple[int | None, ...] = ()
    """`declined[i]`: key i is left although this adapter has it, because loading would not pay; reported and counted under the
    adapter's name.  Empty: nothing is."""


class WantedObject(NamedTuple):
    """One key that L1 misses."""

    chunk: int
    """Its place in the prompt."""
    shard: int
    object_bytes: int
    """In L1, header page included; a serde may have made it shorter where it lies."""


class PrefetchFacts(NamedTuple):
    """What is known of a lookup that goes on in L2, beyond who has what."""

    wanted: Sequence[WantedObject]
    """One for each key.  Several of one chunk and shard are its possible layouts, of which one is needed."""
    windows: Sequence[int | None]
    """By shard: how many chunks it needs in front of the prefix's end; None: all."""
    chunk_tokens: int
    sparse: bool
    """Each chunk counts for itself, and not only as part of a prefix."""
    ordered: bool
    """An operator ordered it: no request waits, and nothing would be computed instead."""
    loading_bytes: Sequence[int]
    """By adapter: bytes that it is loading now, for whomever."""
    objects_at_once: int
    """Objects that are loaded for one lookup at the same time; the others wait for them."""


class LoadFacts(NamedTuple):
    """One answer of an adapter to a load."""

    adapter: str
    asked_bytes: int
    ahead_bytes: int
    """What it was loading already when it was asked."""
    loaded_bytes: int
    """Of what was asked for: what came."""
    seconds: float


class PrefetchPolicy(ReportsConditions, ABC):
    """Where to load from."""

    weighs_loads: bool = False
    """True: it is asked by `weigh` instead of `plan`, and gets every load by `on_load`."""

    def weigh(self, found: Sequence[Bitmap], adapters: Sequence[AdapterFacts], facts: PrefetchFacts) -> PrefetchPlan:
        """As `plan`, with what loading would cost and bring."""
        return self.plan(found, adapters)

    def on_load(self, facts: LoadFacts) -> None:
        """An adapter has answered, or its time was over.  Same thread as `weigh`."""

    @abstractmethod
    def plan(self, found: Sequence[Bitmap], adapters: Sequence[AdapterFacts]) -> PrefetchPlan:
        """`found[a]` has a bit for each key that adapter `a` has; none, if it did not say so in time.  Keys are those that
        L1 misses, shard by shard in prompt order, under each layout that a chunk may have."""
