"""Hypothesis drives the storage manager with both controllers, two adapters that answer on cue, and workers that are late.

Workers prepare and commit through the request module, several transfers at once, of requests of the same name and of
others, and write into what they were given until they have committed, also when they were taken for dead meanwhile.

Operations come in any order: what is served is what was stored under that key, a slot has exactly one writer, no
reader's slot is given away, every lookup is answered in time, and once all owners have ended or are known dead, nothing is
held and nothing is in quarantine.

`LMCACHE_MACHINE_STEPS=1000000 python -m pytest core/tests/storage/test_manager_machine.py --timeout 0` runs as many steps
as it says, instead of about 10,000.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from core.tests.storage.fact_check import FactCheck
from core.tests.storage.scripted_adapter import ScriptedAdapter
from lmcache_client.engine_key import EngineKey
from lmcache_client.layout import ObjectLayout
from lmcache_client.messages import LayoutPart, SlotDescriptor, WorkerRegistration
from lmcache_core.builtin.lru import LeastRecentlyUsed
from lmcache_core.builtin.policies import open_load_from_first, open_store_everywhere
from lmcache_core.contracts.cache_control import CachedObject
from lmcache_core.contracts.operation import Stream
from lmcache_core.contracts.policies import AdapterFacts, PrefetchPlan, PrefetchPolicy
from lmcache_core.contracts.request_module import ModuleContext, ReadTokens, TokenIds
from lmcache_core.contracts.storage import LookupRequest, Shard, SparseLookupRequest, StoredSpace
from lmcache_core.controllers import prefetch_plan
from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_core.controllers.eviction import EvictionController
from lmcache_core.controllers.prefetch import PrefetchController
from lmcache_core.controllers.store import StoreController
from lmcache_core.controllers.store_queue import StoreLimits
from lmcache_core.kernels.choice import PURE, choose_kernels
from lmcache_core.l1.arena import anonymous_arena
from lmcache_core.l1.cache import L1Cache
from lmcache_core.model.keys import HashChain, KeySpace, pack_kv_rank
from lmcache_core.model.object_header import HEADER_BYTES
from lmcache_core.model.results import Bitmap, Outcome
from lmcache_core.server.engine_driven_module import EngineDrivenModule
from lmcache_core.server.registrations import Registrations
from lmcache_core.storage.manager import StorageManager
from lmcache_devkit.cue_adapter import CueJob
from lmcache_devkit.event_recorder import EventRecorder
from lmcache_devkit.fake_clock import FakeClock
from lmcache_devkit.l1_audit import audit

LAYOUT = ObjectLayout(1, 1, 16, 64, "float32")
PAYLOAD = LAYOUT.payload_bytes
CHUNK_TOKENS = 16
SLOTS = 16
READ_TTL, WRITE_TTL, JOB_TIMEOUT, LOOKUP_TIMEOUT = 300.0, 600.0, 30.0, 20.0
PREFETCH_BYTES = 7 * 2 * PAYLOAD
STEPS_PER_RUN = 60
STEPS = int(os.environ.get("LMCACHE_MACHINE_STEPS", "10000"))
PROMPTS = tuple(tuple(bytes([prompt] * 31 + [chunk]) for chunk in range(6)) for prompt in range(2))
CHUNKS = tuple(chunk for prompt in PROMPTS for chunk in prompt)
ROWS = (((0, None),), ((1, None),), ((0, None), (1, None)), ((0, 2),), ((0, None), (1, 1)), ((0, 3), (1, 2)))
"""(rank, window) of each shard of a lookup."""
CONNECTIONS = (b"engine-a", b"engine-b")
REQUESTS = ("0", "1")
WORKERS = (1, 2)
"""The second one keeps a fence."""
SILENCE_SECONDS = 10.0
SELF = 0
"""Worker token of what the machine stores and reads itself."""
TRIPS = (
    *((step, False) for step in ("_handle", "_looked_up", "_load", "_load_answered", "_begin", "_advance", "_publish")),
    *((step, True) for step in ("_load_answered", "_finish_if_complete", "_publish", "released", "_finish")),
)
"""Steps of the prefetch thread that fail: at once, or after they have done what they are there for."""


def space(rank: int) -> StoredSpace:
    rank = pack_kv_rank(2, rank)
    return StoredSpace(KeySpace("m", rank, 0, "", CHUNK_TOKENS, HashChain.BLAKE3, LAYOUT.fingerprint), PAYLOAD)


SPACES = (space(0), space(1))


def content(rank: int, chunk_hash: bytes) -> bytes:
    """The only right bytes for this chunk."""
    return (bytes([rank + 1]) + chunk_hash).ljust(PAYLOAD, b"\x5a")


class Slot(NamedTuple):
    """A slot that a worker was given, and the chunk that belongs into it."""

    offset: int
    chunk_hash: bytes


@dataclass(frozen=True, eq=False)
class Open:
    """A transfer that a worker has prepared and not committed; a retrieve that missed has no slots."""

    worker: int
    rank: int
    key: EngineKey
    slots: tuple[Slot, ...]


def connection_of(worker: int) -> bytes:
    return b"worker %d" % worker


class WorkersCall:
    """A request on its connection's own thread."""

    connection = b"worker"
    may_wait = True
    others_wait = False
    is_congested = False

    def defer(self, seconds: float, fallback: object) -> None:
        raise AssertionError("no transfer is deferred")

    def reply(self, result: object) -> bool:
        raise AssertionError("no transfer is deferred")

    def stream(self, wake: Callable[[], None]) -> Stream:
        raise AssertionError("no transfer is answered by a stream")


CALL = WorkersCall()
RANGES: Final[dict[str, Any]] = {
    "rank": st.integers(0, 1),
    "request": st.sampled_from(REQUESTS),
    "prompt": st.integers(0, len(PROMPTS) - 1),
    "first": st.integers(0, 5),
    "n": st.integers(1, 6),
}
"""What a transfer is about."""


class PromptsByNumber:
    """A hasher for prompts that are sent as their number."""

    def chunk_hashes(self, token_ids: TokenIds | msgspec.Raw, end: int) -> Sequence[bytes]:
        assert isinstance(token_ids, msgspec.Raw)
        return PROMPTS[msgspec.msgpack.decode(token_ids, type=int)][: end // CHUNK_TOKENS]

    def listen(self, function: Callable[[ReadTokens], None]) -> Callable[[], None]:
        raise AssertionError("no module of these reads tokens")


class Asked(NamedTuple):
    """A lookup whose answer was not read."""

    chunks: Sequence[bytes]
    rows: tuple[tuple[int, int | None], ...]
    sparse: bool
    started: float


class FromFirst(PrefetchPolicy):
    """The default policy; what it loads stays in L1 if `retain` says so."""

    retain = False

    def plan(self, found: Sequence[Bitmap], adapters: Sequence[AdapterFacts]) -> PrefetchPlan:
        return PrefetchPlan(open_load_from_first(None).plan(found, adapters).sources, self.retain)


class StorageMachine(RuleBasedStateMachine):
    kernels = PURE

    def __init__(self) -> None:
        super().__init__()
        self.clock, self.events = FakeClock(), EventRecorder()
        self.arena = anonymous_arena(2 * PAYLOAD * SLOTS)
        self.cache = L1Cache(self.arena, 4096, self.kernels)
        self.adapters = [ScriptedAdapter(), ScriptedAdapter()]
        self.clients = [
            AdapterClient(index, f"cue{index}", adapter, adapter.capabilities, self.clock, JOB_TIMEOUT)
            for index, adapter in enumerate(self.adapters)
        ]
        self.policy = FromFirst()
        self.patches = ExitStack()
        for name, cells in (("SLICE_CELLS", 3), ("IN_FLIGHT_CELLS", 5)):
            self.patches.enter_context(patch.object(prefetch_plan, name, cells))
        self.store = StoreController(
            self.cache, self.clients, open_store_everywhere(None), StoreLimits(1 << 20), self.clock, self.events
        )
        self.prefetch = PrefetchController(
            self.cache,
            self.clients,
            self.policy,
            2,
            self.clock,
            self.events,
            lookup_timeout_seconds=LOOKUP_TIMEOUT,
            l1_max_bytes=PREFETCH_BYTES,
        )
        self.eviction = EvictionController(self.cache, LeastRecentlyUsed(self.kernels), 0.8, 0.2, self.events)
        self.storage = StorageManager(
            self.cache, self.store, self.prefetch, READ_TTL, WRITE_TTL, self.clock, self.events
        )
        self.facts = FactCheck(self.cache, self.storage, self.store, self.prefetch, self.clients, self.events)
        self.connected: set[bytes] = set()
        self.workers = Registrations(
            self.storage, self.connected.__contains__, SILENCE_SECONDS, 3600.0, self.clock, self.events
        )
        self.transfers = EngineDrivenModule(
            ModuleContext(
                storage=self.storage,
                hasher=PromptsByNumber(),
                workers=self.workers,
                chunk_tokens=CHUNK_TOKENS,
                chain=HashChain.BLAKE3,
                segment="segment",
                l1_bytes=self.arena.size_bytes,
                clock=self.clock,
                events=self.events,
            )
        )
        for worker in WORKERS:
            self.register(worker)
        self.asked: dict[tuple[bytes, str], Asked] = {}
        self.writes: list[Open] = []
        self.reads: list[Open] = []

    @initialize(in_l2=st.sampled_from((PROMPTS, PROMPTS, PROMPTS[:1], ())))
    def begin(self, in_l2: tuple[tuple[bytes, ...], ...]) -> None:
        for prompt in in_l2:
            for rank in (0, 1):
                self.a_prompt_goes_to_l2_and_leaves_l1(prompt, rank)

    writing = Bundle("writing")
    reading = Bundle("reading")

    # --- schedulers

    @rule(
        connection=st.sampled_from(CONNECTIONS),
        request=st.sampled_from(REQUESTS),
        prompt=st.sampled_from(PROMPTS),
        length=st.integers(0, 6),
        readers=st.integers(1, 2),
        rows=st.sampled_from(ROWS),
        waits=st.booleans(),
    )
    def lookup(
        self,
        connection: bytes,
        request: str,
        prompt: tuple[bytes, ...],
        length: int,
        readers: int,
        rows: tuple[tuple[int, int | None], ...],
        waits: bool,
    ) -> None:
        shards = tuple(Shard((SPACES[rank],), window) for rank, window in rows)
        self.storage.lookup(LookupRequest(connection, request, shards, prompt[:length], readers))
        self.asked[connection, request] = Asked(prompt[:length], rows, False, self.clock.monotonic())
        if waits:
            self.storage.on_lookup(connection, request, self.hear)

    @rule(
        connection=st.sampled_from(CONNECTIONS),
        request=st.sampled_from(REQUESTS),
        chunks=st.lists(st.sampled_from(CHUNKS), max_size=6),
        readers=st.integers(1, 2),
        ranks=st.sampled_from(((0,), (1,), (0, 1))),
    )
    def lookup_sparse(
        self, connection: bytes, request: str, chunks: list[bytes], readers: int, ranks: tuple[int, ...]
    ) -> None:
        shards = tuple(Shard((SPACES[rank],)) for rank in ranks)
        self.storage.lookup_sparse(SparseLookupRequest(connection, request, shards, chunks, readers))
        rows = tuple((rank, None) for rank in ranks)
        self.asked[connection, request] = Asked(chunks, rows, True, self.clock.monotonic())

    def hear(self, hits: int) -> bool:
        """A client waited for the answer, and is gone when it comes."""
        assert 0 <= hits <= len(PROMPTS[0])
        return False

    @rule(connection=st.sampled_from(CONNECTIONS), request=st.sampled_from(REQUESTS), cut=st.integers(0, 6))
    def what_was_hit_can_be_read(self, connection: bytes, request: str, cut: int) -> None:
        """Whatever happened since the answer, every shard of it is there, until the request's worker took it: at once, or
        in two parts."""
        asked = self.asked.get((connection, request))
        if asked is None:
            return
        found = self.storage.sparse_result(connection, request) if asked.sparse else None
        hits = None if asked.sparse else self.storage.lookup_result(connection, request)
        if found is None and hits is None:
            return
        for other in CONNECTIONS:  # a worker's read counts at either
            self.asked.pop((other, request), None)
        self.eviction.cycle()
        self.storage.clear(force=False)
        for rank, window in asked.rows:
            first = 0 if window is None or hits is None else max(0, hits - window)
            chunks = tuple(asked.chunks[first:hits] if found is None else [asked.chunks[place] for place in found])
            for part, begin in ((chunks[:cut], first), (chunks[cut:], first + cut)):
                references = self.storage.acquire(SELF, request, SPACES[rank], part, begin)
                assert references is not None
                for slot, chunk_hash in zip(references.slots, part, strict=True):
                    assert self.storage.payload(slot) == content(rank, chunk_hash), "a hit with wrong bytes"
                self.storage.release(references)
                self.storage.clear(force=False)

    @rule(prompt=st.sampled_from(PROMPTS), rank=st.integers(0, 1))
    def a_prompt_goes_to_l2_and_leaves_l1(self, prompt: tuple[bytes, ...], rank: int) -> None:
        self.store_all(prompt, rank)
        self.everything_is_answered()
        self.storage.clear(force=False)

    def store_all(self, prompt: tuple[bytes, ...], rank: int) -> None:
        references, indexes = self.storage.reserve(SELF, SPACES[rank], prompt)
        for slot, index in zip(references.slots, indexes, strict=True):
            self.storage.payload(slot)[:] = content(rank, prompt[index])
        if references.slots:
            assert self.storage.publish(references, 0, "r")

    @rule()
    def everything_is_answered(self) -> None:
        self.turn()
        while waiting := self.waiting():
            adapter, job = waiting[0]
            adapter.finish(job)
            self.turn()

    @rule(
        request=st.sampled_from(REQUESTS),
        prompt=st.sampled_from(PROMPTS),
        rows=st.sampled_from(ROWS),
        sparse=st.booleans(),
    )
    def a_lookup_gets_as_far_as_its_loads(
        self, request: str, prompt: tuple[bytes, ...], rows: tuple[tuple[int, int | None], ...], sparse: bool
    ) -> None:
        self.storage.clear(force=False)
        if sparse:
            self.lookup_sparse(CONNECTIONS[0], request, list(reversed(prompt)), 1, tuple(rank for rank, _ in rows))
        else:
            self.lookup(CONNECTIONS[0], request, prompt, len(prompt), 1, rows, False)
        self.turn()
        self.everything_of_a_kind_is_done("lookup")

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

    def register(self, worker: int) -> None:
        part = LayoutPart(LAYOUT.kv_axis, LAYOUT.layers, LAYOUT.slots, LAYOUT.hidden, LAYOUT.dtype)
        shard = WORKERS.index(worker)
        described = WorkerRegistration(worker, "m", 2, shard, (part,), shard * SILENCE_SECONDS / 4)
        assert self.transfers.register_worker(CALL, described).shm_name
        self.connected.add(connection_of(worker))
        self.workers.seen(worker, pinged=True, connection=connection_of(worker))

    def key(self, rank: int, request: str, prompt: int, first: int, n: int) -> EngineKey:
        start, end = first * CHUNK_TOKENS, min(first + n, len(PROMPTS[prompt])) * CHUNK_TOKENS
        return EngineKey("m", 2, rank, msgspec.Raw(msgspec.msgpack.encode(prompt)), start, end, request)

    def opened(self, key: EngineKey, slots: object, indexes: Sequence[int] | None = None) -> Open:
        assert isinstance(slots, tuple)
        assert key.worker_id is not None
        chunks = PromptsByNumber().chunk_hashes(key.token_ids, key.end)[key.start // CHUNK_TOKENS :]
        given: Sequence[SlotDescriptor] = slots
        places = range(len(slots)) if indexes is None else indexes
        return Open(
            WORKERS[key.worker_id],
            key.worker_id,
            key,
            tuple(Slot(slot.offset, chunks[place]) for slot, place in zip(given, places, strict=True)),
        )

    def bytes_of(self, slot: Slot) -> memoryview:
        """What a worker sees, who knows nothing of the server but its memory."""
        return self.arena.region.view[slot.offset : slot.offset + PAYLOAD]

    @rule(target=writing, **RANGES)
    def prepare_store(self, rank: int, request: str, prompt: int, first: int, n: int) -> object:
        key = self.key(rank, request, prompt, first, n)
        context = self.transfers.prepare_store(CALL, key, WORKERS[rank]).context  # type: ignore[attr-defined]
        if not context.slots:
            return multiple()
        opened = self.opened(key, context.slots, context.chunk_indices)
        self.writes.append(opened)
        return opened

    @rule(opened=writing, late=st.booleans())
    def prepare_store_again(self, opened: Open, late: bool) -> None:
        """The same range of the same request, while the first one may still be written, perhaps beyond its deadline."""
        if late:
            self.time_passes(WRITE_TTL + 1)
        reply = self.transfers.prepare_store(CALL, opened.key, opened.worker)
        if slots := reply.context.slots:  # type: ignore[attr-defined]
            again = self.opened(opened.key, slots, reply.context.chunk_indices)  # type: ignore[attr-defined]
            self.writes.append(again)

    @rule(opened=writing)
    def scribble(self, opened: Open) -> None:
        """A worker that has not answered may write at any time, also long after its deadline."""
        if opened in self.writes:
            for slot in opened.slots:
                self.bytes_of(slot)[:] = bytes([0xAB]) * PAYLOAD

    @rule(opened=consumes(writing))
    def commit_store(self, opened: Open) -> None:
        if opened in self.writes:
            self.writes.remove(opened)
            for slot in opened.slots:
                self.bytes_of(slot)[:] = content(opened.rank, slot.chunk_hash)
            self.transfers.commit_store(CALL, opened.key, opened.worker, memoryview(b""))

    @rule(opened=consumes(writing))
    def abandon_store(self, opened: Open) -> None:
        if opened in self.writes:
            self.writes.remove(opened)
            self.transfers.abandon_store(CALL, opened.key, opened.worker)

    @rule(target=reading, there=st.booleans(), **RANGES)
    def prepare_retrieve(self, rank: int, request: str, prompt: int, first: int, n: int, there: bool) -> object:
        if there:
            self.store_all(PROMPTS[prompt], rank)
        key = self.key(rank, request, prompt, first, n)
        reply = self.transfers.prepare_retrieve(CALL, key, WORKERS[rank])
        hit = reply.success  # type: ignore[attr-defined]
        if hit:
            for connection in CONNECTIONS:  # it may have taken over what one of these held
                self.asked.pop((connection, request), None)
        opened = self.opened(key, reply.context.slots if hit else ())  # type: ignore[attr-defined]
        self.reads.append(opened)
        return opened

    @rule(opened=reading, anew=st.booleans())
    def prepare_retrieve_again(self, opened: Open, anew: bool) -> None:
        """By another thread, which finds the same chunks in the same slots or, after a clear, in others."""
        if anew:
            self.clear(force=True)
            number = msgspec.msgpack.decode(opened.key.token_ids, type=int)  # type: ignore[arg-type]
            self.store_all(PROMPTS[number], opened.rank)
        reply = self.transfers.prepare_retrieve(CALL, opened.key, opened.worker)
        slots = reply.context.slots if reply.success else ()  # type: ignore[attr-defined]
        self.reads.append(self.opened(opened.key, slots))

    @rule(opened=consumes(reading))
    def commit_retrieve(self, opened: Open) -> None:
        """Also after a miss, as stock workers do."""
        if opened in self.reads:
            self.reads.remove(opened)
            self.transfers.commit_retrieve(CALL, opened.key, opened.worker)

    @rule(data=st.data())
    def a_worker_commits(self, data: st.DataObject) -> None:
        """Whichever of all transfers that are open, those of one name among them."""
        open_ = [*self.writes, *self.reads]
        if not open_:
            return
        opened = data.draw(st.sampled_from(open_))
        (self.commit_store if opened in self.writes else self.commit_retrieve)(opened)

    @rule(worker=st.sampled_from(WORKERS))
    def worker_unregisters(self, worker: int) -> None:
        self.touches_nothing(worker)
        self.workers.unregister(worker, "unregistered")
        self.register(worker)

    @rule(worker=st.sampled_from(WORKERS))
    def worker_dies(self, worker: int) -> None:
        self.touches_nothing(worker)
        self.connected.remove(connection_of(worker))
        self.worker_is_silent(worker)

    @rule(worker=st.sampled_from(WORKERS))
    def worker_is_silent(self, worker: int) -> None:
        """And registers again at once, while threads of it may still be in the middle of a copy.  What it reads then is
        thrown away, where it keeps a fence."""
        for _ in range(int(SILENCE_SECONDS) + 2):
            self.clock.advance(1.0)
            for other in WORKERS:
                if other != worker:
                    self.workers.seen(other, pinged=True)
            self.workers.reap()
        assert self.workers.find(worker) is None
        if worker == WORKERS[1]:
            self.reads = [opened for opened in self.reads if opened.worker != worker]
        self.register(worker)

    def touches_nothing(self, worker: int) -> None:
        self.writes = [opened for opened in self.writes if opened.worker != worker]
        self.reads = [opened for opened in self.reads if opened.worker != worker]

    # --- the adapters, the clock, the controllers

    def waiting(self) -> list[tuple[ScriptedAdapter, CueJob]]:
        return [(adapter, job) for adapter in self.adapters for job in adapter.waiting]

    @rule(data=st.data())
    def adapter_acts(self, data: st.DataObject) -> None:
        waiting = self.waiting()
        if not waiting:
            return
        adapter, job = data.draw(st.sampled_from(waiting))
        match data.draw(st.sampled_from(("finish", "finish", "finish", "partly", "fail", "miss", "time out"))):
            case "finish":
                adapter.finish(job)
            case "partly":
                good = data.draw(st.lists(st.booleans(), min_size=len(job.keys), max_size=len(job.keys)))
                adapter.finish_partly(job, good)
            case "fail":
                adapter.fail(job)
            case "miss":
                adapter.fail(job, Outcome.MISSING)
            case _:
                adapter.time_out(job)
        self.turn()

    @rule(data=st.data(), how=st.sampled_from(("partly", "fail", "time out", "keep", "deadline")))
    def a_load_goes_wrong(self, data: st.DataObject, how: str) -> None:
        loads = [(adapter, job) for adapter, job in self.waiting() if job.verb == "load"]
        if not loads:
            return
        adapter, job = data.draw(st.sampled_from(loads))
        match how:
            case "partly":
                good = data.draw(st.lists(st.booleans(), min_size=len(job.keys), max_size=len(job.keys)))
                adapter.finish_partly(job, good)
            case "fail":
                adapter.fail(job)
            case "time out":
                adapter.time_out(job)
            case "keep":
                adapter.finish_and_keep(job)
            case _:
                self.time_passes(LOOKUP_TIMEOUT + 1)
        self.turn()

    @rule(step=st.sampled_from(TRIPS))
    def the_prefetch_thread_trips(self, step: tuple[str, bool]) -> None:
        """Over the next answer, once; and is started again by the supervisor."""
        for adapter, job in self.waiting():
            if job.verb in ("lookup", "load"):
                adapter.finish(job)
        self.deliver()
        name, afterwards = step
        owner = self.prefetch if hasattr(self.prefetch, name) else self.prefetch._loads
        real = getattr(owner, name)

        tripped: list[bool] = []

        def trip(*arguments: object) -> object:
            if tripped:  # what goes wrong while it is cleaned up has no answer here
                return real(*arguments)
            tripped.append(True)
            if afterwards:
                real(*arguments)
            raise RuntimeError("injected")

        with patch.object(owner, name, trip):
            try:
                self.prefetch.cycle()
                return
            except RuntimeError:
                pass
        self.prefetch._resume()
        self.turn()

    @rule(verb=st.sampled_from(("lookup", "lookup", "load")))
    def everything_of_a_kind_is_done(self, verb: str) -> None:
        for adapter, job in self.waiting():
            if job.verb == verb:
                adapter.finish(job)
        self.turn()

    @rule(data=st.data())
    def adapter_releases_buffers(self, data: st.DataObject) -> None:
        """All that is kept, or but one."""
        keeping = [(adapter, job) for adapter in self.adapters for job in adapter.keeping]
        spared = data.draw(st.sampled_from((None, *keeping))) if keeping else None
        for kept in keeping:
            if kept is not spared:
                adapter, job = kept
                adapter.release_buffers(job)
        self.turn()

    @rule(
        kind=st.sampled_from(("rots", "forgets", "raises")),
        adapter=st.integers(0, 1),
        verb=st.sampled_from(("store", "lookup", "load", "unpin", "reject")),
        data=st.data(),
    )
    def misfortune(self, kind: str, adapter: int, verb: str, data: st.DataObject) -> None:
        """An adapter raises the next time; or it loses or damages an object."""
        objects = self.adapters[adapter].objects
        if kind == "raises":
            self.adapters[adapter].raises_at.add(verb)
        elif objects:
            name = data.draw(st.sampled_from(sorted(objects)))
            damaged = bytearray(objects.pop(name))
            if kind == "rots":
                damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
                objects[name] = bytes(damaged)

    @rule(retain=st.booleans())
    def loads_are_kept(self, retain: bool) -> None:
        self.policy.retain = retain

    @rule()
    def turn(self) -> None:
        self.deliver()
        self.store.cycle()
        self.prefetch.cycle()
        self.nothing_is_left_undone()
        self.deliver()

    def nothing_is_left_undone(self) -> None:
        """All work that can proceed has proceeded: the thread sleeps now until it is woken, or tries for space again soon."""
        if len(self.prefetch._inbox) or any(prefetch.short_since is not None for prefetch in self.prefetch._active):
            return
        before = self.under_way()
        self.prefetch.cycle()
        after = self.under_way()
        assert after == before, "it went on by itself"

    def under_way(self) -> object:
        queued = [prefetch for prefetch in self.prefetch._queue if not prefetch.over]
        return list(self.prefetch._active), queued, self.waiting()

    def deliver(self) -> None:
        for client in self.clients:
            client.deliver()

    @rule(seconds=st.sampled_from((0.3, 11.0, 21.0, 31.0, 250.0, 601.0)))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for worker in WORKERS:
            self.workers.seen(worker, pinged=True)
        if seconds > READ_TTL:
            self.asked.clear()
        for client in self.clients:
            client.expire(self.clock.monotonic())
        self.storage.expire()
        self.turn()
        for connection, request in self.asked:
            lookup = self.storage._lookups._table.find(connection, request)
            late = self.clock.monotonic() >= self.asked[connection, request].started + LOOKUP_TIMEOUT
            assert lookup is None or lookup.answer is not None or not late, "a lookup that is not answered in time"

    @rule()
    def evict(self) -> None:
        self.eviction.cycle()

    @rule(force=st.booleans())
    def clear(self, force: bool) -> None:
        self.storage.clear(force)
        if force:  # what is held stays where it is, and is not found any more
            self.asked.clear()

    # --- the requirements

    @invariant()
    def a_slot_has_one_writer(self) -> None:
        """And no reader, and is neither free nor found, until its writer has answered or is known dead."""
        written = [slot.offset for opened in self.writes for slot in opened.slots]
        assert len(set(written)) == len(written), "two writers of one slot"
        assert not set(written) & {slot.offset for opened in self.reads for slot in opened.slots}, "read while written"
        in_use = {self.cache.payload_offset(view.slot): view.state for view in self.views()}
        for offset in written:
            assert in_use.get(offset) in ("writing", "leaving"), "given away under its writer's hands"

    @invariant()
    def readers_see_what_was_stored(self) -> None:
        in_use = {self.cache.payload_offset(view.slot): view.state for view in self.views()}
        for opened in self.reads:
            for slot in opened.slots:
                assert in_use.get(slot.offset) not in (None, "cached"), "released under a reader's eyes"
                assert self.bytes_of(slot) == content(opened.rank, slot.chunk_hash), "wrong bytes under a reader's eyes"

    @invariant()
    def what_is_found_has_the_bytes_of_its_key(self) -> None:
        for view in self.views():
            if view.state in ("cached", "held"):
                rank = SPACES.index(StoredSpace(view.key.space, view.payload_bytes))
                right = content(rank, view.key.chunk_hash)
                assert self.cache.buffer(view.slot).view[HEADER_BYTES:] == right, "wrong bytes were published"

    def views(self) -> list[CachedObject]:
        return self.cache.contents.views(0, self.cache.contents.slot_numbers)

    @invariant()
    def slot_state_counts_add_up(self) -> None:
        assert self.cache.contents.state_counts().is_balanced, self.cache.contents.state_counts()
        audit(self.cache)

    @invariant()
    def counts_events_and_contents_agree(self) -> None:
        self.facts.check()

    @invariant()
    def prefetches_keep_to_their_bound(self) -> None:
        budget = self.prefetch._budget
        who = [{prefetch} for prefetch, _ in budget._borrowed.values()]
        who += [set(each) for each in budget._held if any(prefetch.lease.slots for prefetch in each)]
        assert budget.used_bytes <= PREFETCH_BYTES or set.intersection(*who), "one that is larger is alone"

    def teardown(self) -> None:
        """All owners end or are known dead, and the adapters release their buffers: nothing is left."""
        with self.patches:
            self.all_leave()

    def all_leave(self) -> None:
        for connection in CONNECTIONS:
            for request in REQUESTS:
                self.storage.end_lookup(connection, request)
        for worker in WORKERS:
            self.workers.unregister(worker, "unregistered")
        self.storage.end_worker(SELF)
        status = self.transfers.status()
        assert (status["stores_prepared"], status["reads_prepared"]) == (0, 0)
        for _ in range(1000):
            self.turn()
            for adapter in self.adapters:
                adapter.raises_at.clear()
                for job in list(adapter.keeping):
                    adapter.release_buffers(job)
            if not self.waiting():
                break
            adapter, job = self.waiting()[0]
            adapter.fail(job)
        self.turn()
        counts = self.cache.contents.state_counts()
        assert (counts.held, counts.quarantined, counts.leases) == (0, 0, 0), counts
        assert counts.is_balanced
        assert all(client.answers for client in self.clients)
        assert self.store.drain(0)
        assert self.storage.lookups_open == 0
        status = self.prefetch.status()
        assert (status["in_flight"], status["queued"], status["l1_bytes"]) == (0, 0, 0), status
        assert (self.prefetch._loads.jobs, self.prefetch._loads._by_key) == (0, {}), "a load that is never answered"
        for adapter in self.adapters:
            assert not [name for name, pins in adapter.pins.items() if pins], "pins left in L2"
            adapter.close(0)
        for inbox in (self.store._inbox, self.prefetch._inbox, self.eviction._wakes):
            inbox.close()
        self.arena.close()


class CompiledStorageMachine(StorageMachine):
    """Half of the steps on the compiled kernels, where they are installed."""

    kernels = choose_kernels("auto")


TestStorage, TestCompiledStorage = StorageMachine.TestCase, CompiledStorageMachine.TestCase
TestStorage.settings = TestCompiledStorage.settings = settings(
    max_examples=-(-STEPS // (2 * STEPS_PER_RUN)), stateful_step_count=STEPS_PER_RUN, deadline=None
)
