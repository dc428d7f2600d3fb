"""Random schedules: what is stored was written, what is loaded was promised, and nothing stays held."""

from __future__ import annotations

import sys

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from engines.vllm.tests.fake_server import FakeServer
from engines.vllm.tests.vllm_model import VllmModel
from engines.vllm.tests.vllm_steps import Request
from lmcache_vllm.placement import CacheGroup, Placement
from lmcache_vllm.request_facts import RequestFacts
from lmcache_vllm.scheduler import SchedulerSide
from lmcache_vllm.settings import Settings

CHUNK = 8
FULL = CacheGroup(("layer",), 4)
SLIDING = CacheGroup(("windowed",), 4, window_tokens=CHUNK)
WINDOWED = (CacheGroup(("full",), 4), CacheGroup(("windowed",), 2, window_tokens=CHUNK))
PROMPTS = [[7] * 30, [7] * 17 + [9] * 14, [7] * 5, [3] * 24, [7] * 8]


class Schedules(RuleBasedStateMachine):
    """vLLM's miniature against a server that a test holds in its hand."""

    @initialize(
        ahead=st.integers(0, 1),
        groups=st.sampled_from([(FULL,), (SLIDING,), WINDOWED]),
        shares=st.booleans(),
        reuses_at_once=st.booleans(),
        blocks=st.sampled_from([14, 30]),
        save_decode=st.booleans(),
        save_tail=st.booleans(),
        at_once=st.booleans(),
        eager=st.sampled_from([0, 2]),
    )
    def start(
        self,
        ahead: int,
        groups: tuple[CacheGroup, ...],
        shares: bool,
        reuses_at_once: bool,
        blocks: int,
        save_decode: bool,
        save_tail: bool,
        at_once: bool,
        eager: int,
    ) -> None:
        self.time = 0.0
        self.server = FakeServer(CHUNK, answers_at_once=at_once)
        self.side = SchedulerSide(
            Settings(lookup_timeout_ms=300, save_decode=save_decode, save_tail=save_tail, eager_lookups=eager),
            Placement("model", 1, 0),
            groups,
            self.server,
            workers=1,
            clock=lambda: self.time,
            patience_seconds=0.0,
        )
        self.model = VllmModel(
            self.side,
            self.server,
            groups,
            ahead=ahead,
            blocks=3 * blocks if len(groups) > 1 else blocks,
            shares_prefixes=shares and groups == (FULL,),
            reuses_at_once=reuses_at_once,
        )
        self.count = 0

    @rule(prompt=st.sampled_from(PROMPTS), length=st.integers(1, 12), salt=st.sampled_from(["", "", "tenant"]))
    def add(self, prompt: list[int], length: int, salt: str) -> None:
        self.count += 1
        facts = RequestFacts(f"r{self.count}", list(prompt), len(prompt), cache_salt=salt)
        self.model.add(facts, max_tokens=length)

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        self.time += 0.1
        self.model.schedule()
        while len(self.model.steps) > self.model.ahead:
            self.model.run(lambda kind, number: data.draw(st.booleans() if kind != "fail" else st.just(False)))

    @rule(data=st.data())
    def step_with_failing_loads(self, data: st.DataObject) -> None:
        self.model.schedule()
        while len(self.model.steps) > self.model.ahead:
            self.model.run(lambda kind, number: data.draw(st.booleans()))

    @rule()
    def steps_without_delay(self) -> None:
        for _ in range(4):
            self.time += 0.01
            self.answer_all()
            self.model.schedule()
            while len(self.model.steps) > self.model.ahead:
                self.model.run(lambda kind, number: kind != "fail")

    @rule(seconds=st.sampled_from([0.2, 2.0, 100.0]))
    def wait(self, seconds: float) -> None:
        self.time += seconds

    @precondition(lambda self: self.server.pending)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        self.server.answer(data.draw(st.sampled_from(sorted(self.server.pending))))

    @precondition(lambda self: self.model.running)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        self.model.preempt(data.draw(st.sampled_from(self.model.running), label="preempted"))

    @precondition(lambda self: self._alive())
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.model.abort(data.draw(st.sampled_from(self._alive()), label="aborted"))

    @precondition(lambda self: self.server.server is not None)
    @rule()
    def server_goes(self) -> None:
        self.server.go()

    @rule(factor=st.sampled_from([1, 1, 2]))
    def server_comes(self, factor: int) -> None:
        if self.server.server is None:
            self.server.come(CHUNK * factor)

    def _alive(self) -> list[Request]:
        return [request for request in self.model.requests.values() if request.status != "finished"]

    def answer_all(self) -> None:
        for request_id in list(self.server.pending):
            self.server.answer(request_id)

    def teardown(self) -> None:
        if sys.exc_info()[0] or not hasattr(self, "model"):
            return
        for request in self._alive():
            self.model.abort(request)
        for _ in range(4 + self.model.ahead):
            self.model.schedule()
            while len(self.model.steps) > self.model.ahead:
                self.model.run(lambda kind, number: kind != "fail")
        assert not self.model.requests, "requests that vLLM waits for in vain"
        assert not self.server.holds_anything(), "chunks that no worker will fetch"
        assert not self.side._states
        assert not self.side._ending
        assert not self.side._ledger.requests()


def test_schedules() -> None:
    run_state_machine_as_test(Schedules, settings=settings(max_examples=60, stateful_step_count=40, deadline=None))


@pytest.mark.parametrize(("save_tail", "loaded"), [(False, 24), (True, 28)])
def test_a_repeated_prompt_is_loaded(save_tail: bool, loaded: int) -> None:
    """The machine's own check: without loads its checks would show nothing."""
    machine = Schedules()
    machine.start(
        ahead=1,
        groups=(FULL,),
        shares=False,
        reuses_at_once=False,
        blocks=30,
        save_decode=True,
        save_tail=save_tail,
        at_once=True,
        eager=2,
    )
    for _ in range(2):
        machine.add([7] * 30, 3, "")
        for _ in range(6):
            machine.steps_without_delay()
    assert machine.model.worker.loaded_tokens == loaded
    machine.teardown()
