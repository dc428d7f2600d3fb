"""Storage with its real threads, and with engines and workers that all come at once.

What the state machine cannot show, since it takes one step after the other: what a lookup was answered with stays until it
was read, no wrong byte is read, and when all are done nothing is referenced."""

from __future__ import annotations

import logging
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from core.tests.storage.storage_harness import PAYLOAD, SLOT, space
from lmcache_core.builtin.lru import LeastRecentlyUsed
from lmcache_core.builtin.memory_l2 import MemoryAdapter, MemorySettings
from lmcache_core.builtin.policies import open_load_from_first, open_store_everywhere
from lmcache_core.contracts.clock import SystemClock
from lmcache_core.contracts.l1_memory import BorrowedBuffer
from lmcache_core.contracts.l2_adapter import AdapterContext
from lmcache_core.contracts.storage import LookupRequest, Shard
from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_core.controllers.adapter_jobs import CompletionThread
from lmcache_core.controllers.eviction import EvictionController
from lmcache_core.controllers.prefetch import PrefetchController
from lmcache_core.controllers.store import StoreController
from lmcache_core.controllers.store_queue import StoreLimits
from lmcache_core.controllers.supervisor import Supervisor
from lmcache_core.kernels.choice import Kernels
from lmcache_core.l1.arena import anonymous_arena
from lmcache_core.l1.cache import L1Cache
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.results import Outcome
from lmcache_core.storage.manager import StorageManager
from lmcache_devkit.event_recorder import EventRecorder
from lmcache_devkit.l1_audit import audit

SLOTS, PROMPT_CHUNKS, ENGINES, ROUNDS = 48, 12, 3, 250
PROMPTS = tuple(tuple(bytes([prompt] * 31 + [chunk]) for chunk in range(PROMPT_CHUNKS)) for prompt in range(5))
SPACES = (space(0), space(1))
ROWS = (((0, None),), ((0, None), (1, None)), ((0, 3), (1, None)))
"""(rank, window) of each shard of a lookup."""
WORKERS = (1, 2)
REQUESTS = ("a", "b")
"""Every engine uses the same ids."""
TIMEOUT_SECONDS = 30.0


def content(rank: int, chunk: bytes) -> bytes:
    return (bytes([rank + 1]) + chunk).ljust(PAYLOAD, b"\x5a")


class Unreliable(MemoryAdapter):
    """Slow now and then, and now and then wrong."""

    def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        chance = random.random()
        if chance < 0.3:
            time.sleep(chance / 100)
        if chance > 0.97:
            return Outcome.FAILED
        if chance > 0.94:
            buffer.view[:] = b"\xee" * buffer.length
            return Outcome.DONE
        return super().load(key, buffer)


class Server:
    def __init__(self, kernels: Kernels) -> None:
        clock, events, self.arena = SystemClock(), EventRecorder(), anonymous_arena(SLOT * SLOTS)
        self.cache = cache = L1Cache(self.arena, 4096, kernels)
        self.clients = []
        for number, name in enumerate(("first", "second")):
            context = AdapterContext(
                name, "i", "b", (self.arena.region,), 4096, clock, events, logging.getLogger("lmcache_core.test")
            )
            adapter = Unreliable(MemorySettings(), context)
            self.clients.append(AdapterClient(number, name, adapter, adapter.capabilities, clock, TIMEOUT_SECONDS))
        store = StoreController(cache, self.clients, open_store_everywhere(None), StoreLimits(1 << 20), clock, events)
        self.prefetch = PrefetchController(
            cache, self.clients, open_load_from_first(None), 4, clock, events, l1_max_bytes=SLOT * SLOTS // 2
        )
        eviction = EvictionController(cache, LeastRecentlyUsed(kernels), 0.8, 0.2, events)
        self.storage = StorageManager(cache, store, self.prefetch, 300, 600, clock, events, 0.01)
        self.completions = CompletionThread(self.clients, clock)
        self.controllers = (store, self.prefetch, eviction)
        self.inboxes = (store._inbox, self.prefetch._inbox, eviction._wakes, self.completions._wakes)
        self.supervisor = Supervisor()
        for runnable in (self.completions, *self.controllers):
            self.supervisor.start(type(runnable).__name__, runnable.run)

    def is_idle(self) -> bool:
        counts, status = self.cache.contents.state_counts(), self.prefetch.status()
        held = (counts.held, counts.quarantined, counts.leases, self.prefetch._loads.jobs)
        return held == (0, 0, 0, 0) and (status["in_flight"], status["queued"], status["l1_bytes"]) == (0, 0, 0)

    def close(self) -> None:
        for client in self.clients:
            client.close(1)
        self.supervisor._stopping.set()
        for runnable in (self.completions, *self.controllers):
            runnable.stop()
        assert self.supervisor.join(TIMEOUT_SECONDS) == []
        for inbox in self.inboxes:
            inbox.close()
        self.arena.close()


@pytest.fixture
def server(kernels: Kernels) -> Iterator[Server]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(2e-5)
    made = Server(kernels)
    yield made
    sys.setswitchinterval(before)
    made.close()


def ask(server: Server, connection: bytes, choose: random.Random) -> None:
    """One request, from its lookup to its end: the next one of this engine may have the same id and replace it."""
    storage, request = server.storage, choose.choice(REQUESTS)
    rows, prompt = choose.choice(ROWS), choose.choice(PROMPTS)[: choose.randint(1, PROMPT_CHUNKS)]
    shards = tuple(Shard((SPACES[rank],), window) for rank, window in rows)
    for other in REQUESTS:  # its readers would have to come first, and never do
        if other != request:
            storage.end_lookup(connection, other)
    storage.lookup(LookupRequest(connection, request, shards, prompt, readers=1))
    answers, answered = list[int](), threading.Event()

    def hear(hits: int) -> bool:
        answers.append(hits)
        answered.set()
        return True

    storage.on_lookup(connection, request, hear)
    end = choose.choice(("read", "read", "read", "free", "leave", "cut"))
    if end != "cut":
        assert answered.wait(TIMEOUT_SECONDS), "no answer"
    for rank, window in rows if end == "read" else ():
        first = 0 if window is None else max(0, answers[0] - window)
        wanted = prompt[first : answers[0]]
        references = storage.acquire(WORKERS[rank], request, SPACES[rank], wanted, first)
        assert references is not None, "what the lookup was answered with is gone"
        for slot, chunk in zip(references.slots, wanted, strict=True):
            assert storage.payload(slot) == content(rank, chunk)
        storage.release(references)
    if end == "free":
        storage.free_lookup(connection, request, 0, len(prompt))
    if choose.random() < 0.8:
        storage.end_lookup(connection, request)


def fill(server: Server, worker: int, choose: random.Random) -> None:
    storage, rank, first = server.storage, WORKERS.index(worker), choose.randrange(PROMPT_CHUNKS)
    chunks = choose.choice(PROMPTS)[first : first + choose.randint(1, PROMPT_CHUNKS)]
    references, indexes = storage.reserve(worker, SPACES[rank], chunks, lambda: True)
    for slot, index in zip(references.slots, indexes, strict=True):
        storage.payload(slot)[:] = content(rank, chunks[index])
    if references.slots and choose.random() < 0.9:
        assert storage.publish(references, first, "")
    else:
        storage.discard(references)
    if choose.random() < 0.1:
        storage.clear(force=False)
        storage.expire()


def test_everything_at_once(server: Server) -> None:
    faults: list[BaseException] = []

    def repeat(step: Callable[[random.Random], None], seed: int) -> None:
        choose = random.Random(seed)
        try:
            for _ in range(ROUNDS):
                step(choose)
        except BaseException as error:  # noqa: BLE001 - the test's own thread raises it
            faults.append(error)

    steps: Sequence[Callable[[random.Random], None]] = (
        *(lambda choose, worker=worker: fill(server, worker, choose) for worker in WORKERS),
        *(lambda choose, name=b"%d" % n: ask(server, name, choose) for n in range(ENGINES)),
    )
    threads = [threading.Thread(target=repeat, args=(step, seed)) for seed, step in enumerate(steps)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
    for number in range(ENGINES):
        for request in REQUESTS:
            server.storage.end_lookup(b"%d" % number, request)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not server.is_idle() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert server.is_idle()
    assert server.prefetch.status()["loaded"]
    audit(server.cache)
    assert not list(server.supervisor.conditions())
    table = server.cache._table
    states = [table.state(slot) for slot in range(len(table))]
    assert not any(state and state[4] for state in states), "a temporary object without references"
