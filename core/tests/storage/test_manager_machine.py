"""Hypothesis drives the storage manager with both controllers, an adapter that answers on cue, and workers that are late.

Whatever happens in whatever order: what is served is what was stored under that key, nobody's bytes are touched by
another owner, and once all owners have ended or are known dead, nothing is held and nothing is in quarantine.
"""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from lmcache_core.builtin.lru import open_lru
from lmcache_core.builtin.policies import open_load_from_first, open_store_everywhere
from lmcache_core.contracts.storage import Hold, LookupRequest, Shard, StoredSpace
from lmcache_core.controllers.adapter_port import AdapterPort
from lmcache_core.controllers.eviction import EvictionController
from lmcache_core.controllers.prefetch import PrefetchController
from lmcache_core.controllers.store import StoreController
from lmcache_core.l1.arena import anonymous_arena
from lmcache_core.l1.cache import L1Cache
from lmcache_core.model.keys import HashChain, KeySpace, pack_kv_rank
from lmcache_core.model.results import Outcome
from lmcache_core.storage.manager import StorageManager
from lmcache_core.testing.cue_adapter import CueAdapter
from lmcache_core.testing.event_recorder import EventRecorder
from lmcache_core.testing.fake_clock import FakeClock

PAYLOAD = 4096
SLOTS = 24
READ_TTL, WRITE_TTL, JOB_TIMEOUT = 300.0, 600.0, 30.0
PROMPTS = tuple(tuple(bytes([prompt] * 31 + [chunk]) for chunk in range(6)) for prompt in range(2))
RANKS = ((0,), (0,), (1,), (0, 1))
CONNECTIONS = (b"engine-a", b"engine-b")
REQUESTS = ("0", "1")
WORKERS = (1, 2)


def space(rank: int) -> StoredSpace:
    return StoredSpace(KeySpace("m", pack_kv_rank(2, rank), 0, "", 16, HashChain.BLAKE3, bytes(16)), PAYLOAD)


SPACES = (space(0), space(1))


def content(rank: int, chunk_hash: bytes) -> bytes:
    """The only right bytes for this chunk."""
    return (bytes([rank + 1]) + chunk_hash).ljust(PAYLOAD, b"\x5a")


class Open(NamedTuple):
    """A transfer that a worker has begun."""

    worker: int
    rank: int
    hashes: tuple[bytes, ...]
    hold: Hold


class StorageMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock, self.events = FakeClock(), EventRecorder()
        self.arena = anonymous_arena(2 * PAYLOAD * SLOTS)
        self.cache = L1Cache(self.arena, 4096)
        self.adapter = CueAdapter()
        self.port = AdapterPort(0, "cue", self.adapter, self.adapter.capabilities, self.clock, JOB_TIMEOUT)
        store_policy, prefetch_policy = open_store_everywhere(None), open_load_from_first(None)
        self.store = StoreController(self.cache, [self.port], store_policy, 1 << 20, self.clock, self.events)
        self.prefetch = PrefetchController(self.cache, [self.port], prefetch_policy, 2, self.clock, self.events)
        self.eviction = EvictionController(self.cache, open_lru(None), 0.8, 0.2, self.events)
        self.storage = StorageManager(
            self.cache, self.store, self.prefetch, READ_TTL, WRITE_TTL, self.clock, self.events
        )
        self.asked: dict[tuple[bytes, str], tuple[tuple[bytes, ...], tuple[int, ...]]] = {}
        self.writes: list[Open] = []
        self.reads: list[Open] = []

    writing = Bundle("writing")
    reading = Bundle("reading")

    # --- schedulers

    @rule(
        connection=st.sampled_from(CONNECTIONS),
        request=st.sampled_from(REQUESTS),
        prompt=st.sampled_from(PROMPTS),
        length=st.integers(0, 6),
        readers=st.integers(1, 2),
        ranks=st.sampled_from(RANKS),
    )
    def lookup(
        self,
        connection: bytes,
        request: str,
        prompt: tuple[bytes, ...],
        length: int,
        readers: int,
        ranks: tuple[int, ...],
    ) -> None:
        shards = tuple(Shard((SPACES[rank],)) for rank in ranks)
        self.storage.lookup(LookupRequest(connection, request, shards, prompt[:length], readers))
        self.asked[connection, request] = (prompt[:length], ranks)

    @rule(connection=st.sampled_from(CONNECTIONS), request=st.sampled_from(REQUESTS))
    def what_was_hit_can_be_read(self, connection: bytes, request: str) -> None:
        """Whatever happened since the answer, every shard of the prefix is there, until the request's worker took it."""
        if (connection, request) not in self.asked:
            return
        hits = self.storage.lookup_result(connection, request)
        if hits is None:
            return
        prompt, ranks = self.asked.pop((connection, request))
        self.eviction.cycle()
        self.storage.clear(force=False)
        for rank in ranks:
            hold = self.storage.acquire(WORKERS[rank], request, SPACES[rank], prompt[:hits], 0)
            assert hold is not None
            self.check(Open(WORKERS[rank], rank, prompt[:hits], hold))
            self.storage.release(hold)

    @rule(prompt=st.sampled_from(PROMPTS), rank=st.integers(0, 1))
    def a_prompt_goes_to_l2_and_leaves_l1(self, prompt: tuple[bytes, ...], rank: int) -> None:
        hold, indexes = self.storage.reserve(WORKERS[rank], SPACES[rank], prompt)
        for slot, index in zip(hold.slots, indexes, strict=True):
            self.storage.payload(slot)[:] = content(rank, prompt[index])
        if hold.slots:
            assert self.storage.publish(hold, 0, "r")
        self.everything_is_answered()
        self.storage.clear(force=False)

    @rule()
    def everything_is_answered(self) -> None:
        self.turn()
        while self.adapter.waiting:
            self.adapter.finish(self.adapter.waiting[0])
            self.turn()

    @rule(
        connection=st.sampled_from(CONNECTIONS),
        request=st.sampled_from(REQUESTS),
        first=st.integers(0, 6),
        end=st.integers(0, 6),
    )
    def free(self, connection: bytes, request: str, first: int, end: int) -> None:
        self.storage.free_lookup(connection, request, first, end)
        self.asked.pop((connection, request), None)

    @rule(connection=st.sampled_from(CONNECTIONS), request=st.sampled_from(REQUESTS), times=st.integers(1, 2))
    def end(self, connection: bytes, request: str, times: int) -> None:
        self.asked.pop((connection, request), None)
        for _ in range(times):
            self.storage.end_lookup(connection, request)
        assert self.storage.lookup_result(connection, request) == 0

    @rule(connection=st.sampled_from(CONNECTIONS))
    def ping(self, connection: bytes) -> None:
        self.storage.renew_lookups(connection)

    # --- workers

    @rule(
        target=writing,
        rank=st.integers(0, 1),
        prompt=st.sampled_from(PROMPTS),
        first=st.integers(0, 5),
        n=st.integers(1, 6),
    )
    def prepare_store(self, rank: int, prompt: tuple[bytes, ...], first: int, n: int) -> object:
        hashes = prompt[first : first + n]
        hold, indexes = self.storage.reserve(WORKERS[rank], SPACES[rank], hashes)
        if not hold.slots:
            return multiple()
        opened = Open(WORKERS[rank], rank, tuple(hashes[i] for i in indexes), hold)
        self.writes.append(opened)
        return opened

    @rule(opened=writing)
    def scribble(self, opened: Open) -> None:
        """A worker that has not answered may write at any time, also long after its deadline."""
        if opened in self.writes:
            for slot in opened.hold.slots:
                self.storage.payload(slot)[:] = bytes([0xAB]) * PAYLOAD

    @rule(opened=consumes(writing))
    def commit_store(self, opened: Open) -> None:
        if opened not in self.writes:
            return
        self.writes.remove(opened)
        for slot, chunk_hash in zip(opened.hold.slots, opened.hashes, strict=True):
            self.storage.payload(slot)[:] = content(opened.rank, chunk_hash)
        live = self.storage.is_live(opened.hold)
        assert self.storage.publish(opened.hold, 0, "r") == live

    @rule(opened=consumes(writing))
    def give_up_store(self, opened: Open) -> None:
        if opened in self.writes:
            self.writes.remove(opened)
            self.storage.discard(opened.hold)

    @rule(
        target=reading,
        rank=st.integers(0, 1),
        request=st.sampled_from(REQUESTS),
        prompt=st.sampled_from(PROMPTS),
        first=st.integers(0, 5),
        n=st.integers(1, 6),
    )
    def prepare_retrieve(self, rank: int, request: str, prompt: tuple[bytes, ...], first: int, n: int) -> object:
        hashes = prompt[first : first + n]
        hold = self.storage.acquire(WORKERS[rank], request, SPACES[rank], hashes, first)
        if hold is None:
            return multiple()
        for connection in CONNECTIONS:  # it may have taken over what one of these held
            self.asked.pop((connection, request), None)
        opened = Open(WORKERS[rank], rank, tuple(hashes), hold)
        self.reads.append(opened)
        return opened

    @rule(opened=consumes(reading))
    def commit_retrieve(self, opened: Open) -> None:
        if opened in self.reads:
            self.reads.remove(opened)
            self.storage.release(opened.hold)

    @rule(worker=st.sampled_from(WORKERS))
    def worker_is_known_dead(self, worker: int) -> None:
        self.writes = [opened for opened in self.writes if opened.worker != worker]
        self.reads = [opened for opened in self.reads if opened.worker != worker]
        self.storage.end_worker(worker)

    # --- the adapter, the clock, the controllers

    @rule(data=st.data())
    def adapter_acts(self, data: st.DataObject) -> None:
        if not self.adapter.waiting:
            return
        job = data.draw(st.sampled_from(self.adapter.waiting))
        how = data.draw(st.sampled_from(("finish", "finish", "finish", "fail", "miss", "time out")))
        match how:
            case "finish":
                self.adapter.finish(job)
            case "fail":
                self.adapter.fail(job)
            case "miss":
                self.adapter.fail(job, Outcome.MISSING)
            case _:
                self.adapter.time_out(job)
        self.turn()

    @rule(data=st.data())
    def adapter_lets_go(self, data: st.DataObject) -> None:
        if self.adapter.keeping:
            self.adapter.let_go(data.draw(st.sampled_from(self.adapter.keeping)))
            self.turn()

    @rule(data=st.data(), where=st.integers(0, 8191), bit=st.integers(0, 7))
    def backend_rots(self, data: st.DataObject, where: int, bit: int) -> None:
        if self.adapter.objects:
            name = data.draw(st.sampled_from(sorted(self.adapter.objects)))
            damaged = bytearray(self.adapter.objects[name])
            damaged[where] ^= 1 << bit
            self.adapter.objects[name] = bytes(damaged)

    @rule()
    def turn(self) -> None:
        self.port.deliver()
        self.store.cycle()
        self.prefetch.cycle()
        self.port.deliver()

    @rule(seconds=st.sampled_from((1.0, 31.0, 250.0, 601.0)))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        if seconds > READ_TTL:
            self.asked.clear()
        self.port.expire(self.clock.monotonic())
        self.storage.expire()
        self.turn()

    @rule()
    def evict(self) -> None:
        self.eviction.cycle()

    @rule(force=st.booleans())
    def clear(self, force: bool) -> None:
        self.storage.clear(force)
        if force:  # what is held stays where it is, and is not found any more
            self.asked.clear()

    # --- the laws

    def check(self, opened: Open) -> None:
        for slot, chunk_hash in zip(opened.hold.slots, opened.hashes, strict=True):
            assert self.storage.payload(slot) == content(opened.rank, chunk_hash), "wrong bytes under a reader's eyes"

    @invariant()
    def readers_see_what_was_stored(self) -> None:
        for opened in self.reads:
            self.check(opened)

    @invariant()
    def the_census_holds(self) -> None:
        assert self.cache.census().holds, self.cache.census()
        self.cache.audit()

    def teardown(self) -> None:
        """All owners end or are known dead, and the adapter lets go: nothing is left."""
        for connection in CONNECTIONS:
            for request in REQUESTS:
                self.storage.end_lookup(connection, request)
        for worker in WORKERS:
            self.storage.end_worker(worker)
        for _ in range(1000):
            self.turn()
            for job in list(self.adapter.keeping):
                self.adapter.let_go(job)
            if not self.adapter.waiting:
                break
            self.adapter.fail(self.adapter.waiting[0])
        self.turn()
        census = self.cache.census()
        assert (census.held, census.quarantined, census.leases) == (0, 0, 0), census
        assert census.holds
        assert self.port.healthy
        assert self.store.drain(0)
        assert self.storage.lookups_open == 0
        assert not [name for name, pins in self.adapter.pins.items() if pins], "pins left in L2"
        self.adapter.close(0)
        self.arena.close()


StorageMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestStorage = StorageMachine.TestCase
