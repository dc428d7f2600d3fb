"""vLLM's scheduler and worker in miniature, to drive a SchedulerSide through schedules that a test chooses.

The KV of a token is a digest of everything before it, so that a block with the wrong context is seen wherever it
gets to. The model checks what vLLM relies on: a block is read only while it holds what was promised, and a request is
named as finished as often as vLLM expects it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from engines.vllm.tests.fake_server import FakeServer
from engines.vllm.tests.vllm_blocks import BlockPool
from engines.vllm.tests.vllm_steps import Request, Step, Write, next_token
from engines.vllm.tests.vllm_worker import StepResults, WorkerModel
from lmcache_vllm.metadata import StepPlan, kept_id
from lmcache_vllm.placement import CacheGroup
from lmcache_vllm.request_facts import RequestFacts, StepFacts
from lmcache_vllm.scheduler import SchedulerSide


class Worker(Protocol):
    """All of its ranks."""

    @property
    def loaded_tokens(self) -> int: ...

    def run(self, step: Step, chooses: Callable[[str, int], bool]) -> StepResults: ...


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
        self.requests: dict[str, Request] = {}
        self.known: dict[str, Request] = {}
        """Those that are over as well."""
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.preempted: set[str] = set()
        self.unsent: set[str] = set()  # finished, blocks kept for stores
        self.unreceived: set[str] = set()  # aborted while loading
        self.steps: list[Step] = []
        self._blocks = BlockPool(groups, blocks, shares_prefixes=shares_prefixes, reuses_at_once=reuses_at_once)
        self.users = self._blocks.users
        self.worker: Worker = WorkerModel(server, groups, blocks, self.known, self.users)

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
        self._blocks.free_skipped(request, request.computed - unprocessed)
        if self.side.on_finished(request.id):
            assert not keep, "a request is not loaded and stored at once: vLLM would free its blocks twice"
            self.unsent.add(request.id)
        elif not keep:
            self._forget(request)

    def _forget(self, request: Request) -> None:
        self._give_back(request)
        del self.requests[request.id]

    def _give_back(self, request: Request) -> None:
        """Blocks that a step will still write are not free before it ran."""
        blocks = [block for table in request.tables for block in table if block]
        writing = [step for step in self.steps if any(write.request is request for write in step.writes)]
        if writing:
            writing[-1].freed += blocks
        else:
            self._blocks.release(blocks)
        request.tables = []

    # Steps

    def schedule(self) -> None:
        scheduled: dict[str, tuple[int, int]] = {}
        writes: list[Write] = []
        new_blocks: list[tuple[int, list[list[int]]]] = []
        left = self.budget
        for request in list(self.running):
            count = min(left, self._computable(request))
            before = [len(table) for table in request.tables]
            if count > 0 and self._blocks.allocate(request, request.computed + count):
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
            self._blocks.cache_blocks(request, request.computed)
        self.steps.append(Step(plan, writes))

    def _check_holds(self, plan: StepPlan) -> None:
        """Of a request that has its blocks, what will be loaded is held and nothing else."""
        chunk = self.server.chunk_tokens
        for request in self.running:
            assert not self.server.holds.get(request.id), f"{request.id} runs, and chunks are held for it"
            for held_for in (request.id, kept_id(request.id)):
                assert not self.server.segments.get(held_for), f"{request.id} runs, and segments are held for it"
        for load in plan.loads:
            held = self.server.holds.get(load.request_id)  # None: the server went in the meantime
            assert held in (None, set(range(load.start // chunk, load.end // chunk))), f"{load.request_id} holds {held}"
        for blend in plan.blend_loads:
            held = self.server.holds.get(blend.request_id)
            assert held in (None, set(range(blend.prefix.end // chunk))), f"{blend.request_id} holds {held}"

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
            shared = self._blocks.shared_prefix(request)
            local = len(shared) * self.groups[0].block_tokens
            external, waits = self.side.matched_tokens(request.id, local)
            if external is None:
                return 0
            assert waits == (external > 0)
            assert local + external < len(request.tokens), "one token at least is computed"
            # Shared blocks count as used before others are allocated.
            self._blocks.share(shared)
            request.tables = [shared] if shared else []
            count = 0 if external else min(left, len(request.tokens) - local)
            request.computed = local + external
            if not self._blocks.allocate(request, local + external + count):
                self._give_back(request)
                request.computed = 0
                return 0
            self.side.on_allocated(request.id, request.tables, external)
            if external:
                request.status = "loading"
                return 0
        else:
            count = min(left, len(request.tokens) - request.computed)
            if not self._blocks.allocate(request, request.computed + count):
                return 0
            self.side.on_allocated(request.id, request.tables, 0)
        self.waiting.remove(request)
        self.running.append(request)
        request.status = "running"
        return count

    def run(self, chooses: Callable[[str, int], bool]) -> None:
        """Run the oldest step, and process it. `chooses` says which transfers end in it, and which loads fail."""
        if self.steps:
            step = self.steps.pop(0)
            self._process(step, self.worker.run(step, chooses))

    def _process(self, step: Step, results: StepResults) -> None:
        report, received, sent = results
        for name, bad in received.items():
            request = self.requests[name]
            if request.status == "loading" and bad:
                self._load_failed(request, bad)
        self._blocks.release(step.freed)
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
        self.side.on_worker_results(report, received.keys())
        for name in received:
            request = self.requests[name]
            if request.status == "loading":
                request.status = "loaded"
                if request.tables:
                    self._blocks.cache_blocks(request, request.computed)
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
