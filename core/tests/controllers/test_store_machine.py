"""Adapters, threads and operators act in any order: every object is accounted for, what arrives is whole, and
in the end nothing is held."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from core.tests.controllers.store_harness import OBJECT, TIMEOUT, StoreHarness, chunks
from lmcache_core.controllers.store_queue import DropRule, StoreLimits

PROMPTS = [chunks(8, prompt) for prompt in range(3)]


class InjectedError(RuntimeError):
    """Thrown into the controller."""


class StoreMachine(RuleBasedStateMachine):
    @initialize(drop=st.sampled_from(list(DropRule)), backlog=st.integers(1, 24), seconds=st.sampled_from((None, 2.0)))
    def open(self, drop: DropRule, backlog: int, seconds: float | None) -> None:
        self.harness = StoreHarness(StoreLimits(backlog * OBJECT, seconds, drop), adapters=2)
        self.taken_in = 0

    @rule(prompt=st.sampled_from(PROMPTS), first=st.integers(0, 7), count=st.integers(1, 8))
    def put(self, prompt: list[bytes], first: int, count: int) -> None:
        self.taken_in += self.harness.put(prompt[first : first + count], first)

    @rule(number=st.integers(0, 1), how=st.sampled_from(("finish", "finish", "fail", "time out", "release")))
    def adapter_acts(self, number: int, how: str) -> None:
        adapter = self.harness.adapters[number]
        if how == "release" and adapter.keeping:
            adapter.release_buffers(adapter.keeping[0])
        elif how != "release" and adapter.waiting:
            job = adapter.waiting[0]
            {"finish": adapter.finish, "fail": adapter.fail, "time out": adapter.time_out}[how](job)

    @rule()
    def turn(self) -> None:
        self.harness.turn()

    @rule(method=st.sampled_from(("_enqueue", "_submit", "_seal", "_answered", "_pump")))
    def turn_and_trip(self, method: str) -> None:
        def trip(*arguments: object) -> None:
            raise InjectedError

        setattr(self.harness.store, method, trip)
        try:
            self.harness.turn()
        except InjectedError:
            pass
        finally:
            delattr(self.harness.store, method)

    @rule(seconds=st.sampled_from((0.1, 3.0, TIMEOUT + 1)))
    def time_passes(self, seconds: float) -> None:
        self.harness.clock.advance(seconds)
        for client in self.harness.clients:
            client.expire(self.harness.clock.monotonic())

    @rule(force=st.booleans())
    def clear(self, force: bool) -> None:
        self.harness.cache.contents.clear(force)

    @invariant()
    def everything_is_accounted_for(self) -> None:
        if not hasattr(self, "harness"):
            return
        for number in (0, 1):
            account = self.harness.snapshot(number)
            assert account.waiting >= 0
            assert account.in_flight >= 0
            assert account.admitted + account.merged <= self.taken_in
            for prompt in PROMPTS:
                self.harness.stored(prompt, number)
        assert self.harness.cache.contents.state_counts().is_balanced

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        for _ in range(200):
            self.harness.turn()
            for adapter in self.harness.adapters:
                for job in list(adapter.keeping):
                    adapter.release_buffers(job)
                for job in list(adapter.waiting):
                    adapter.finish(job)
        self.harness.turn()
        for number in (0, 1):
            account = self.harness.snapshot(number)
            assert (account.waiting, account.in_flight, account.backlog_bytes) == (0, 0, 0), account
        counts = self.harness.cache.contents.state_counts()
        assert (counts.held, counts.quarantined, counts.leases) == (0, 0, 0), counts
        assert self.harness.store.drain(0), self.harness.store.status()
        self.harness.close()


StoreMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestStores = StoreMachine.TestCase
