"""Storage over adapters that answer on cue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from core.tests.storage.scripted_adapter import ScriptedAdapter
from lmcache_core.builtin.policies import open_load_from_first, open_store_everywhere
from lmcache_core.contracts.policies import AdapterFacts, PrefetchPlan, PrefetchPolicy
from lmcache_core.contracts.storage import LookupRequest, Shard, SparseLookupRequest, StoredSpace
from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_core.controllers.prefetch import PrefetchController
from lmcache_core.controllers.store import StoreController
from lmcache_core.controllers.store_queue import StoreLimits
from lmcache_core.l1.arena import anonymous_arena
from lmcache_core.l1.cache import L1Cache
from lmcache_core.model.keys import HashChain, KeySpace, pack_kv_rank
from lmcache_core.model.results import Bitmap
from lmcache_core.storage.manager import StorageManager
from lmcache_devkit.cue_adapter import CueJob
from lmcache_devkit.event_recorder import EventRecorder
from lmcache_devkit.fake_clock import FakeClock
from lmcache_devkit.l1_audit import audit

PAYLOAD = 4096
SLOT = 2 * PAYLOAD
WORKER = 7
CHUNKS = tuple(bytes([chunk]) * 32 for chunk in range(8))
LOOKUP_TIMEOUT = 20.0


def space(rank: int = 0, layout: int = 0) -> StoredSpace:
    key_space = KeySpace("m", pack_kv_rank(2, rank), 0, "", 16, HashChain.BLAKE3, bytes([layout]) * 16)
    return StoredSpace(key_space, PAYLOAD)


class Retain(PrefetchPolicy):
    """The default one's choice; what is loaded stays."""

    def plan(self, found: Sequence[Bitmap], adapters: Sequence[AdapterFacts]) -> PrefetchPlan:
        return PrefetchPlan(open_load_from_first(None).plan(found, adapters).sources, retain=True)


class StorageHarness:
    """`turn` is one round of every controller."""

    def __init__(
        self,
        *,
        adapters: int = 1,
        slots: int = 64,
        policy: PrefetchPolicy | None = None,
        prefetch_slots: int | None = None,
        max_in_flight: int = 2,
        pin_slots: int = 16,
    ) -> None:
        self.clock, self.events = FakeClock(), EventRecorder()
        self.arena = anonymous_arena(SLOT * slots)
        self.cache = L1Cache(self.arena, 4096)
        self.adapters = [ScriptedAdapter() for _ in range(adapters)]
        self.clients = [
            AdapterClient(index, f"cue{index}" if index else "cue", adapter, adapter.capabilities, self.clock, 30.0)
            for index, adapter in enumerate(self.adapters)
        ]
        self.adapter, self.client = self.adapters[0], self.clients[0]
        self.store = StoreController(
            self.cache, self.clients, open_store_everywhere(None), StoreLimits(1 << 17), self.clock, self.events
        )
        self.prefetch = PrefetchController(
            self.cache,
            self.clients,
            policy or open_load_from_first(None),
            max_in_flight,
            self.clock,
            self.events,
            lookup_timeout_seconds=LOOKUP_TIMEOUT,
            l1_max_bytes=None if prefetch_slots is None else prefetch_slots * SLOT,
        )
        self.storage = StorageManager(
            self.cache,
            self.store,
            self.prefetch,
            300,
            600,
            self.clock,
            self.events,
            pin_max_bytes=pin_slots * SLOT,
        )

    def turn(self) -> None:
        for client in self.clients:
            client.deliver()
        self.store.cycle()
        self.prefetch.cycle()

    def health(self) -> tuple[bool, int]:
        """Is the first adapter well, and how many slots are in quarantine?"""
        return self.client.answers, self.cache.contents.state_counts().quarantined

    def jobs(self, verb: str) -> list[tuple[ScriptedAdapter, CueJob]]:
        return [(adapter, job) for adapter in self.adapters for job in adapter.waiting if job.verb == verb]

    def finish(self, verb: str) -> None:
        """Everything of this kind that waits now is done."""
        for adapter, job in self.jobs(verb):
            adapter.finish(job)
        self.turn()

    def settle(self) -> None:
        """Everything is done, in the order in which it was asked for."""
        self.turn()
        while waiting := [(adapter, job) for adapter in self.adapters for job in adapter.waiting]:
            adapter, job = waiting[0]
            adapter.finish(job)
            self.turn()

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for client in self.clients:
            client.expire(self.clock.monotonic())
        self.storage.expire()
        self.turn()

    def put(self, *chunks: bytes, into: StoredSpace | None = None) -> None:
        references, indexes = self.storage.reserve(WORKER, into or space(), chunks)
        for slot, index in zip(references.slots, indexes, strict=True):
            self.storage.payload(slot)[:] = chunks[index] * (PAYLOAD // 32)
        assert self.storage.publish(references, 0, "r")

    def put_in_l2(self, *chunks: bytes, into: StoredSpace | None = None, only: int | None = None) -> None:
        """Chunks that L1 does not have; in this adapter alone, if one is given."""
        self.put(*chunks, into=into)
        before = [dict(adapter.objects) for adapter in self.adapters]
        self.settle()
        self.storage.clear(force=False)
        for index, adapter in enumerate(self.adapters):
            if only is not None and index != only:
                adapter.objects = before[index]

    def ask(
        self,
        *chunks: bytes,
        request: str = "r",
        shards: tuple[Shard, ...] = (),
        readers: int = 1,
        connection: bytes = b"c",
    ) -> None:
        self.storage.lookup(LookupRequest(connection, request, shards or (Shard((space(),)),), chunks, readers))

    def ask_sparse(self, *chunks: bytes, request: str = "r", shards: tuple[Shard, ...] = (), readers: int = 1) -> None:
        self.storage.lookup_sparse(SparseLookupRequest(b"c", request, shards or (Shard((space(),)),), chunks, readers))

    def answer(self, request: str = "r") -> int | None:
        return self.storage.lookup_result(b"c", request)

    def places(self, request: str = "r") -> list[int] | None:
        found = self.storage.sparse_result(b"c", request)
        return None if found is None else list(found)

    def held(self) -> int:
        return self.cache.contents.state_counts().held

    def pins(self) -> int:
        return sum(abs(pins) for adapter in self.adapters for pins in adapter.pins.values())


def nothing_is_left(harness: StorageHarness) -> bool:
    status = harness.prefetch.status()
    return (harness.held(), harness.pins(), status["in_flight"], status["l1_bytes"]) == (0, 0, 0, 0)


@contextmanager
def open_storage(harness: StorageHarness) -> Iterator[StorageHarness]:
    yield harness
    assert harness.cache.contents.state_counts().is_balanced
    audit(harness.cache)
    for adapter in harness.adapters:
        adapter.close(0)
    for controller in (harness.store, harness.prefetch):
        controller._inbox.close()
    harness.arena.close()
