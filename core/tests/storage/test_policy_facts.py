"""What eviction and store policies know of the requests behind inserts, stores and hits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from lmcache_core.builtin.policies import open_load_from_first, open_store_everywhere
from lmcache_core.contracts.policies import (
    AdapterFacts,
    PrefetchPlan,
    PrefetchPolicy,
    StoredObject,
    StorePlan,
    StorePolicy,
)
from lmcache_core.contracts.storage import LookupRequest, Shard, StoredSpace
from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_core.controllers.prefetch import PrefetchController
from lmcache_core.controllers.store import StoreController
from lmcache_core.controllers.store_queue import StoreLimits
from lmcache_core.l1.arena import anonymous_arena
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.index import Accessed, Inserted, LogEntry
from lmcache_core.model.keys import HashChain, KeySpace, pack_kv_rank
from lmcache_core.storage.manager import StorageManager
from lmcache_devkit.cue_adapter import CueAdapter
from lmcache_devkit.event_recorder import EventRecorder
from lmcache_devkit.fake_clock import FakeClock
from lmcache_devkit.l1_audit import audit

PAYLOAD = 4096
CHUNKS = tuple(bytes([chunk]) * 32 for chunk in range(8))
SPACE = StoredSpace(KeySpace("m", pack_kv_rank(1, 0), 0, "salt", 16, HashChain.BLAKE3, bytes(16)), PAYLOAD)


class Retain(PrefetchPolicy):
    def plan(self, found: object, adapters: object) -> PrefetchPlan:
        return PrefetchPlan(open_load_from_first(None).plan(found, adapters).sources, retain=True)  # type: ignore[arg-type]


class StorageHarness:
    """Storage with one adapter that answers on cue."""

    def __init__(self, policy: StorePolicy | None = None) -> None:
        self.clock, events, self.adapter = FakeClock(), EventRecorder(), CueAdapter()
        self.arena = anonymous_arena(2 * PAYLOAD * 64)
        self.cache = L1Cache(self.arena, 4096)
        self.client = AdapterClient(0, "cue", self.adapter, self.adapter.capabilities, self.clock, 30.0)
        self.store = StoreController(
            self.cache, [self.client], policy or open_store_everywhere(None), StoreLimits(1 << 20), self.clock, events
        )
        self.prefetch = PrefetchController(self.cache, [self.client], Retain(), 2, self.clock, events)
        self.storage = StorageManager(self.cache, self.store, self.prefetch, 300, 600, self.clock, events)

    def settle(self) -> None:
        for _ in range(8):
            for job in tuple(self.adapter.waiting):
                self.adapter.finish(job)
            self.client.deliver()
            self.store.cycle()
            self.prefetch.cycle()

    def put(self, first: int, *chunks: bytes, request: str = "r") -> None:
        references, _ = self.storage.reserve(7, SPACE, chunks)
        for slot in references.slots:
            self.storage.payload(slot)[:] = bytes(PAYLOAD)
        assert self.storage.publish(references, first, request)

    def ask(self, *chunks: bytes, request: str = "r") -> None:
        self.storage.lookup(LookupRequest(b"c", request, (Shard((SPACE,)),), chunks, 1))

    def entries(self) -> list[LogEntry]:
        return self.cache.take_access_log()


@pytest.fixture
def harness() -> Iterator[StorageHarness]:
    harness = StorageHarness()
    yield harness
    audit(harness.cache)
    harness.adapter.close(0)
    harness.arena.close()


def test_an_insert_knows_its_prompt(harness: StorageHarness) -> None:
    harness.put(0, *CHUNKS[:2], request="before")
    harness.ask(*CHUNKS)
    harness.settle()
    assert harness.storage.lookup_result(b"c", "r") == 2
    harness.entries()
    harness.clock.advance(5)
    harness.put(2, *CHUNKS[2:])
    (entry,) = harness.entries()
    assert isinstance(entry, Inserted)
    facts = entry.facts
    assert (facts.first_chunk, facts.space, [key[4:] for key in facts.keys]) == (2, SPACE.space, list(CHUNKS[2:]))
    assert (facts.request.prompt_chunks, facts.request.hit_chunks) == (8, 2)
    assert facts.request.seconds == harness.clock.monotonic()


def test_an_insert_without_a_lookup_says_so(harness: StorageHarness) -> None:
    harness.put(0, CHUNKS[0], request="alone")
    (entry,) = harness.entries()
    assert isinstance(entry, Inserted)
    assert (entry.facts.request.prompt_chunks, entry.facts.request.hit_chunks) == (0, 0)
    assert entry.facts.request.request != 0


def test_only_the_prefix_that_was_hit_is_an_access_and_it_is_logged_once(harness: StorageHarness) -> None:
    harness.put(0, *CHUNKS[:3])
    harness.put(4, *CHUNKS[4:])
    harness.settle()
    harness.adapter.objects.clear()
    harness.entries()
    harness.ask(*CHUNKS)
    harness.settle()
    (entry,) = harness.entries()
    assert isinstance(entry, Accessed)
    assert (len(entry.slots), entry.facts.first_chunk, entry.facts.request.hit_chunks) == (3, 0, 3)
    references = harness.storage.acquire(7, "r", SPACE, CHUNKS[:3], 0)
    assert references
    harness.storage.release(references)
    assert harness.entries() == [], "reading what a lookup has hit is not a second hit"
    harness.ask(*CHUNKS)
    harness.settle()
    assert harness.entries() == [], "nor is the same request's next lookup"


def test_a_lookup_that_finds_more_than_before_tells_of_the_rest(harness: StorageHarness) -> None:
    harness.put(0, *CHUNKS[:3])
    harness.ask(*CHUNKS[:3])
    harness.put(3, *CHUNKS[3:5], request="other")
    harness.entries()
    harness.ask(*CHUNKS[:5])
    (entry,) = harness.entries()
    assert isinstance(entry, Accessed)
    assert (len(entry.slots), entry.facts.first_chunk) == (2, 3)


def test_another_request_is_another_access(harness: StorageHarness) -> None:
    harness.put(0, *CHUNKS[:3])
    numbers = []
    for request in ("a", "b"):
        harness.entries()
        harness.ask(*CHUNKS[:3], request=request)
        (entry,) = harness.entries()
        assert isinstance(entry, Accessed)
        numbers.append(entry.facts.request.request)
    assert numbers[0] != numbers[1]


def test_a_read_without_a_lookup_is_an_access(harness: StorageHarness) -> None:
    harness.put(0, *CHUNKS[:3])
    harness.entries()
    references = harness.storage.acquire(7, "unheard of", SPACE, CHUNKS[:2], 0)
    assert references
    (entry,) = harness.entries()
    assert isinstance(entry, Accessed)
    assert len(entry.slots) == 2
    harness.storage.release(references)


def test_what_was_brought_from_l2_and_kept_is_an_insert_and_no_access(harness: StorageHarness) -> None:
    harness.put(0, *CHUNKS[:4])
    harness.settle()
    harness.storage.clear(force=True)
    harness.entries()
    harness.ask(*CHUNKS[:4])
    harness.settle()
    assert harness.storage.lookup_result(b"c", "r") == 4
    entries = [entry for entry in harness.entries() if isinstance(entry, Inserted | Accessed)]
    assert all(isinstance(entry, Inserted) for entry in entries)
    assert sorted(entry.facts.first_chunk for entry in entries) == [0, 1, 2, 3]
    assert {entry.facts.request.prompt_chunks for entry in entries if isinstance(entry, Inserted)} == {4}


class LongPromptsOnly(StorePolicy):
    """Prompts of more than four chunks, and everything that is hit again."""

    plans_hits = True

    def __init__(self) -> None:
        self.asked: list[StoredObject] = []

    def plan(self, objects: Sequence[StoredObject], adapters: Sequence[AdapterFacts]) -> StorePlan:
        self.asked += objects
        return StorePlan(tuple((0,) if each.hit or each.request.prompt_chunks > 4 else () for each in objects))


@pytest.fixture
def picky() -> Iterator[tuple[StorageHarness, LongPromptsOnly]]:
    policy = LongPromptsOnly()
    harness = StorageHarness(policy)
    yield harness, policy
    audit(harness.cache)
    harness.adapter.close(0)
    harness.arena.close()


def test_a_store_policy_can_keep_only_long_prompts(picky: tuple[StorageHarness, LongPromptsOnly]) -> None:
    harness, policy = picky
    harness.ask(*CHUNKS[:4], request="short")
    harness.put(0, *CHUNKS[:4], request="short")
    harness.settle()
    assert not harness.adapter.objects
    harness.storage.end_lookup(b"c", "short")
    policy.asked.clear()
    harness.ask(*CHUNKS, request="long")
    harness.settle()
    assert [(each.hit, each.chunk, each.request.prompt_chunks) for each in policy.asked] == [
        (True, chunk, 8) for chunk in range(4)
    ]
    policy.asked.clear()
    harness.put(4, *CHUNKS[4:], request="long")
    harness.settle()
    assert [(each.hit, each.chunk, *each.request[2:]) for each in policy.asked] == [
        (False, chunk, 8, 4) for chunk in range(4, 8)
    ]
    assert {each.space.cache_salt for each in policy.asked} == {"salt"}
    assert len({each.request.request for each in policy.asked} - {0}) == 1
    assert len(harness.adapter.objects) == 8


def test_of_hits_with_gaps_a_store_policy_knows_the_places(picky: tuple[StorageHarness, LongPromptsOnly]) -> None:
    """Chunks 2 and 3 come back from L2, so that only the others are hits in L1."""
    harness, policy = picky
    harness.ask(*CHUNKS, request="first")
    harness.put(0, *CHUNKS, request="first")
    harness.settle()
    harness.storage.end_lookup(b"c", "first")
    harness.cache.contents.drop(SPACE.space, CHUNKS[2:4], force=False)
    policy.asked.clear()
    harness.ask(*CHUNKS, request="second")
    harness.settle()
    assert harness.storage.lookup_result(b"c", "second") == 8
    assert [each.chunk for each in policy.asked if each.hit] == [0, 1, 4, 5, 6, 7]
