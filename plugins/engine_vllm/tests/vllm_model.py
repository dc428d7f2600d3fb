"""vLLM's scheduler and worker in miniature, to drive a SchedulerSide through schedules that a test chooses.

The KV of a token is a digest of everything before it, so that a block with the wrong context is seen wherever it
gets to. The model checks what vLLM relies on: a block is read only while it holds what was promised, and a request is
named as finished as often as vLLM expects it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lmcache_vllm.metadata import StepPlan, Transfer, WorkerReport
from lmcache_vllm.placement import CacheGroup
from lmcache_vllm.request_facts import RequestFacts, StepFacts
from lmcache_vllm.scheduler import SchedulerSide
from plugins.engine_vllm.tests.fake_server import FakeServer

EMPTY = "never written"


def kv_of(salt: str, tokens: Sequence[int], position: int) -> int:
    return hash((salt, tuple(tokens[: position + 1])))


def next_token(tokens: Sequence[int]) -> int:
    return hash(tuple(tokens)) % 50


@dataclass
class Request:
    """`tokens` is what vLLM knows; `truth` what the model will have said, as far as it was computed."""

    facts: RequestFacts
    tokens: list[int]
    max_tokens: int
    status: str = "waiting"
    computed: int = 0
    tables: list[list[int]] = field(default_factory=list)
    in_flight: int = 0
    truth: list[int] = field(default_factory=list)
    life: int = 0
    """Counts preemptions: what an older life computed is not delivered."""

    def __repr__(self) -> str:
        return f"{self.id} {self.status} {self.computed}/{len(self.tokens)}"

    @property
    def id(self) -> str:
        return self.facts.request_id

    @property
    def target(self) -> int:
        return self.facts.prompt_tokens + self.max_tokens


@dataclass
class Write:
    """Tokens of one request in one step, and where their KV goes."""

    request: Request
    start: int
    count: int
    tables: list[list[int]]
    life: int


@dataclass
class Step:
    plan: StepPlan
    writes: list[Write]
    freed: list[int] = field(default_factory=list)
    """Blocks that nobody needs any more once it ran."""


class VllmModel:
    """Steps are scheduled, run by the worker, and processed, in this order; `ahead` of them are scheduled before the
    first is processed."""

    def __init__(
        self,
        side: SchedulerSide,
        server: FakeServer,
        groups: Sequence[CacheGroup],
        *,
        blocks: int = 40,
        ahead: int = 0,
        budget: int = 12,
        shares_prefixes: bool = True,
        reuses_at_once: bool = False,
    ) -> None:
        self.side, self.server, self.groups = side, server, tuple(groups)
        self.ahead, self.budget = ahead, budget
        self.shares_prefixes = shares_prefixes and len(self.groups) == 1
        self.reuses_at_once = reuses_at_once
        """vLLM gives out those that are free for longest; a nearly full one has no others."""
        self.requests: dict[str, Request] = {}
        self.known: dict[str, Request] = {}
        """Those that are over as well."""
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.free = list(range(1, blocks))
        self.users: Counter[int] = Counter()
        self.cached: dict[tuple[Any, ...], int] = {}
        self.preempted: set[str] = set()
        self.unsent: set[str] = set()  # finished, blocks kept for stores
        self.unreceived: set[str] = set()  # aborted while loading
        # The worker
        self.memory: list[list[dict[int, Any]]] = [[{} for _ in range(blocks)] for _ in self.groups]
        self.steps: list[Step] = []
        self.loads: list[Transfer] = []
        self.stores: list[Transfer] = []
        self.finishing: set[str] = set()
        self.over: Counter[int] = Counter()
        self.received: dict[str, set[int]] = {}
        self.loaded_tokens = 0

    # Requests

    def add(self, facts: RequestFacts, max_tokens: int) -> None:
        request = Request(facts, facts.tokens, max_tokens)  # type: ignore[arg-type]  # the test's own list
        request.truth = list(facts.tokens)
        self.requests[facts.request_id] = self.known[facts.request_id] = request
        self.waiting.append(request)
        self.side.on_new_request(facts)

    def abort(self, request: Request) -> None:
        if request.status == "loading":
            self._finish(request, keep=True)
            self.unreceived.add(request.id)
        else:
            self._finish(request)

    def preempt(self, request: Request) -> None:
        self.running.remove(request)
        self._give_back(request)
        request.status, request.computed = "waiting", 0
        request.in_flight = 0
        request.life += 1
        self.waiting.insert(0, request)
        self.preempted.add(request.id)

    def _finish(self, request: Request, keep: bool = False) -> None:
        for queue in (self.waiting, self.running):
            if request in queue:
                queue.remove(request)
        request.status = "finished"
        unprocessed = sum(write.count for step in self.steps for write in step.writes if write.request is request)
        self._let_go_of_skipped(request, request.computed - unprocessed)
        if self.side.on_finished(request.id):
            assert not keep, "a request is not loaded and stored at once: vLLM would free its blocks twice"
            self.unsent.add(request.id)
        elif not keep:
            self._forget(request)

    def _forget(self, request: Request) -> None:
        self._give_back(request)
        del self.requests[request.id]

    # Blocks

    def _give_back(self, request: Request) -> None:
        """Blocks that a step will still write are not free before it ran."""
        blocks = [block for table in request.tables for block in table if block]
        writing = [step for step in self.steps if any(write.request is request for write in step.writes)]
        if writing:
            writing[-1].freed += blocks
        else:
            self._release(blocks)
        request.tables = []

    def _release(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self.users[block] -= 1
            if not self.users[block]:
                self.free.append(block)

    def _allocate(self, request: Request, tokens: int) -> bool:
        """Blocks for that many tokens; a group with a window lets go of those that it does not need any more."""
        wanted = [-(-tokens // group.block_tokens) for group in self.groups]
        tables = request.tables or [[] for _ in self.groups]
        missing = sum(max(0, count - len(table)) for count, table in zip(wanted, tables, strict=True))
        if missing > len(self.free):
            return False
        request.tables = tables
        self._let_go_of_skipped(request, request.computed)
        for count, table, group in zip(wanted, tables, self.groups, strict=True):
            needless = self._skipped(group, request.computed)
            while len(table) < count:
                if len(table) < needless:
                    table.append(0)
                    continue
                block = self.free.pop(-1 if self.reuses_at_once else 0)
                self.users[block] += 1
                self.cached = {name: kept for name, kept in self.cached.items() if kept != block}
                table.append(block)
        return True

    def _let_go_of_skipped(self, request: Request, computed: int) -> None:
        """Each step, and at the end before the connector is asked."""
        for table, group in zip(request.tables, self.groups, strict=False):  # without blocks there are no tables
            for index in range(min(self._skipped(group, computed), len(table))):
                if table[index]:
                    self._release([table[index]])
                    table[index] = 0

    @staticmethod
    def _skipped(group: CacheGroup, computed: int) -> int:
        """Blocks that a window has left behind."""
        return max(0, computed - group.window_tokens + 1) // group.block_tokens if group.window_tokens >= 0 else 0

    def _shared_prefix(self, request: Request) -> list[int]:
        found: list[int] = []
        size = self.groups[0].block_tokens
        while self.shares_prefixes and (len(found) + 1) * size < len(request.tokens):
            block = self.cached.get(self._prefix_name(request, (len(found) + 1) * size))
            if block is None:
                break
            found.append(block)
        return found

    def _prefix_name(self, request: Request, end: int) -> tuple[Any, ...]:
        return (request.facts.cache_salt, *request.truth[:end])

    def _cache_blocks(self, request: Request, computed: int) -> None:
        if self.shares_prefixes:
            size = self.groups[0].block_tokens
            for index in range(min(computed, len(request.tokens)) // size):
                self.cached.setdefault(self._prefix_name(request, (index + 1) * size), request.tables[0][index])

    # The scheduler

    def schedule(self) -> None:
        scheduled: dict[str, tuple[int, int]] = {}
        writes: list[Write] = []
        new_blocks: list[tuple[int, list[list[int]]]] = []
        left = self.budget
        for request in list(self.running):
            count = min(left, self._computable(request))
            before = [len(table) for table in request.tables]
            if count > 0 and self._allocate(request, request.computed + count):
                left -= count
                scheduled[request.id] = (request.computed, count)
                new_blocks.append((0, [table[had:] for table, had in zip(request.tables, before, strict=True)]))
        for request in list(self.waiting):
            if left <= 0:
                break
            count = self._admit(request, left)
            if count:
                left -= count
                scheduled[request.id] = (request.computed, count)
                new_blocks.append((request.computed, [list(table) for table in request.tables]))
        step = StepFacts(scheduled, lambda name: self.requests[name].tables, frozenset(self.preempted), new_blocks)
        self.preempted.clear()
        plan = self.side.plan(step)
        self._check_holds(plan)
        for name, (computed, count) in scheduled.items():
            request = self.requests[name]
            tables = [list(table) for table in request.tables]
            writes.append(Write(request, computed, count, tables, request.life))
            while len(request.truth) < computed + count:
                request.truth.append(next_token(request.truth))
            request.computed += count
            request.in_flight += 1
            self._cache_blocks(request, request.computed)
        self.steps.append(Step(plan, writes))

    def _check_holds(self, plan: StepPlan) -> None:
        """Of a request that has its blocks, what will be loaded is held and nothing else."""
        chunk = self.server.chunk_tokens
        for request in self.running:
            assert not self.server.holds.get(request.id), f"{request.id} runs, and chunks are held for it"
        for load in plan.loads:
            held = self.server.holds.get(load.request_id)  # None: the server went in the meantime
            assert held in (None, set(range(load.start // chunk, load.end // chunk))), f"{load.request_id} holds {held}"

    def _computable(self, request: Request) -> int:
        """With steps ahead, one token for each that was not processed is not known yet, and scheduled all the same."""
        known = len(request.tokens)
        if self.ahead and request.computed >= known:
            known += request.in_flight
        return min(known, request.target - 1) - request.computed

    def _admit(self, request: Request, left: int) -> int:
        if request.status == "loading":
            return 0
        if request.status == "loaded":
            request.status = "waiting"
        if request.computed == 0:
            shared = self._shared_prefix(request)
            local = len(shared) * self.groups[0].block_tokens
            external, waits = self.side.matched_tokens(request.id, local)
            if external is None:
                return 0
            assert waits == (external > 0)
            assert local + external < len(request.tokens), "one token at least is computed"
            # Shared blocks count as used before others are allocated.
            for block in shared:
                if block in self.free:
                    self.free.remove(block)
                self.users[block] += 1
            request.tables = [shared] if shared else []
            count = 0 if external else min(left, len(request.tokens) - local)
            request.computed = local + external
            if not self._allocate(request, local + external + count):
                self._give_back(request)
                request.computed = 0
                return 0
            self.side.on_allocated(request.id, request.tables, external)
            if external:
                request.status = "loading"
                return 0
        else:
            count = min(left, len(request.tokens) - request.computed)
            if not self._allocate(request, request.computed + count):
                return 0
            self.side.on_allocated(request.id, request.tables, 0)
        self.waiting.remove(request)
        self.running.append(request)
        request.status = "running"
        return count

    # The worker

    def run(self, chooses: Callable[[str, int], bool]) -> None:
        """Run the oldest step, and process it. `chooses` says which transfers end in it, and which loads fail."""
        if not self.steps:
            return
        step = self.steps.pop(0)
        for store in [store for store in self.stores if store.id in step.plan.fence]:
            self._store(store)
        for write in step.writes:
            self._forward(write)
        self.loads += step.plan.loads
        self.stores += step.plan.stores
        self.finishing.update(step.plan.finishing)
        for store in list(self.stores):
            if chooses("store", store.id):
                self._store(store)
        for load in list(self.loads):
            if chooses("load", load.id):
                self._load(load, fails=chooses("fail", load.id))
        self._process(step)

    def _forward(self, write: Write) -> None:
        request, start, end = write.request, write.start, write.start + write.count
        salt, truth = request.facts.cache_salt, request.truth
        for memory, group, table in zip(self.memory, self.groups, write.tables, strict=True):
            first = 0 if group.window_tokens < 0 else max(0, start - group.window_tokens + 1)
            for position in range(first, start):
                seen = memory[table[position // group.block_tokens]].get(position % group.block_tokens, EMPTY)
                assert seen == kv_of(salt, truth, position), f"{request.id} computes on foreign KV at {position}"
            for position in range(start, end):
                memory[table[position // group.block_tokens]][position % group.block_tokens] = kv_of(
                    salt, truth, position
                )

    def _slots(self, memory: list[dict[int, Any]], size: int, block: int) -> tuple[Any, ...]:
        return tuple(memory[block].get(slot, EMPTY) for slot in range(size))

    def _store(self, store: Transfer) -> None:
        """Reads the blocks as they are now."""
        self.stores.remove(store)
        self.over[store.id] += 1
        request = self.known[store.request_id]
        chunk = self.server.chunk_tokens
        contents = []
        for number in range((store.end - store.start) // chunk):
            content: list[Any] = []
            for memory, group, ids in zip(self.memory, self.groups, store.block_ids, strict=True):
                per_chunk = chunk // group.block_tokens
                for block in ids[number * per_chunk : (number + 1) * per_chunk]:
                    assert block, "the null block is stored"
                    content += self._slots(memory, group.block_tokens, block)
            expected = [
                kv_of(request.facts.cache_salt, request.truth, position)
                for position in range(store.start + number * chunk, store.start + (number + 1) * chunk)
            ]
            assert content == expected * len(self.groups), f"{store.request_id} stores other KV than its own"
            contents.append(tuple(content))
        if self.server.server is not None and (store.start % chunk, store.end % chunk) == (0, 0):
            self.server.put(store, contents)

    def _load(self, load: Transfer, fails: bool) -> None:
        self.loads.remove(load)
        self.over[load.id] += 1
        bad: set[int] = set()
        contents = None if fails else self.server.retrieve(load)
        if contents is None:
            bad = {block for ids in load.block_ids for block in ids if block}
        else:
            self._scatter(load, contents)
        self.received[load.request_id] = bad

    def _scatter(self, load: Transfer, contents: Sequence[Sequence[Any]]) -> None:
        chunk = self.server.chunk_tokens
        for number, content in enumerate(contents):
            place = 0
            for memory, group, ids in zip(self.memory, self.groups, load.block_ids, strict=True):
                size = group.block_tokens
                for block in ids[number * chunk // size : (number + 1) * chunk // size]:
                    if block:
                        assert self.users[block] == 1, "a block that others share is overwritten"
                        memory[block] = dict(enumerate(content[place : place + size]))
                        self.loaded_tokens += size
                    place += size

    # The scheduler again

    def _process(self, step: Step) -> None:
        received, self.received = self.received, {}
        for name, bad in received.items():
            request = self.requests[name]
            if request.status == "loading" and bad:
                self._load_failed(request, bad)
        self._release(step.freed)
        for write in step.writes:
            request = write.request
            if request.status != "running" or request.life != write.life:
                continue
            request.in_flight -= 1
            if write.start + write.count >= len(request.tokens):
                if len(request.truth) == len(request.tokens):
                    request.truth.append(next_token(request.truth))
                request.tokens.append(request.truth[len(request.tokens)])
            if len(request.tokens) >= request.target:
                self._finish(request)
        busy = {store.request_id for store in self.stores}
        sent = self.finishing - busy
        self.finishing -= sent
        report = WorkerReport(dict(self.over), frozenset(name for name, bad in received.items() if bad))
        self.over = Counter()
        self.side.on_worker_results(report, received.keys())
        for name in received:
            request = self.requests[name]
            if request.status == "loading":
                request.status = "loaded"
                if request.tables:
                    self._cache_blocks(request, request.computed)
            else:
                self.unreceived.remove(name)
                self._forget(request)
        for name in sent:
            self.unsent.remove(name)
            self._forget(self.requests[name])

    def _load_failed(self, request: Request, bad: set[int]) -> None:
        first = 0
        if len(self.groups) == 1 and self.groups[0].window_tokens < 0:  # else the worker names the request
            first = next((index for index, block in enumerate(request.tables[0]) if block in bad), 0)
        request.computed = min(request.computed, first * self.groups[0].block_tokens)
        if not request.computed:
            self._give_back(request)
