"""Whatever adapters, threads and operators do in whatever order: every object is accounted for, what arrives is whole, and
in the end nothing is held."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from core.tests.controllers.depot import OBJECT, TIMEOUT, Depot, chunks
from lmcache_core.controllers.store_queue import DropRule, StoreLimits

PROMPTS = [chunks(8, prompt) for prompt in range(3)]


class InjectedError(RuntimeError):
    """Thrown into the controller."""


class StoreMachine(RuleBasedStateMachine):
    @initialize(drop=st.sampled_from(list(DropRule)), backlog=st.integers(1, 24), seconds=st.sampled_from((None, 2.0)))
    def open(self, drop: DropRule, backlog: int, seconds: float | None) -> None:
        self.depot = Depot(StoreLimits(backlog * OBJECT, seconds, drop), adapters=2)
        self.taken_in = 0

    @rule(prompt=st.sampled_from(PROMPTS), first=st.integers(0, 7), count=st.integers(1, 8))
    def put(self, prompt: list[bytes], first: int, count: int) -> None:
        self.taken_in += self.depot.put(prompt[first : first + count], first)

    @rule(number=st.integers(0, 1), how=st.sampled_from(("finish", "finish", "fail", "time out", "let go")))
    def adapter_acts(self, number: int, how: str) -> None:
        adapter = self.depot.adapters[number]
        if how == "let go" and adapter.keeping:
            adapter.let_go(adapter.keeping[0])
        elif how != "let go" and adapter.waiting:
            job = adapter.waiting[0]
            {"finish": adapter.finish, "fail": adapter.fail, "time out": adapter.time_out}[how](job)

    @rule()
    def turn(self) -> None:
        self.depot.turn()

    @rule(method=st.sampled_from(("_enqueue", "_submit", "_seal", "_answered", "_pump")))
    def turn_and_trip(self, method: str) -> None:
        def trip(*arguments: object) -> None:
            raise InjectedError

        setattr(self.depot.store, method, trip)
        try:
            self.depot.turn()
        except InjectedError:
            pass
        finally:
            delattr(self.depot.store, method)

    @rule(seconds=st.sampled_from((0.1, 3.0, TIMEOUT + 1)))
    def time_passes(self, seconds: float) -> None:
        self.depot.clock.advance(seconds)
        for client in self.depot.clients:
            client.expire(self.depot.clock.monotonic())

    @rule(force=st.booleans())
    def clear(self, force: bool) -> None:
        self.depot.cache.contents.clear(force)

    @invariant()
    def everything_is_accounted_for(self) -> None:
        if not hasattr(self, "depot"):
            return
        for number in (0, 1):
            account = self.depot.snapshot(number)
            assert account.waiting >= 0
            assert account.in_flight >= 0
            assert account.admitted + account.merged <= self.taken_in
            for prompt in PROMPTS:
                self.depot.stored(prompt, number)
        assert self.depot.cache.contents.state_counts().is_balanced

    def teardown(self) -> None:
        if not hasattr(self, "depot"):
            return
        for _ in range(200):
            self.depot.turn()
            for adapter in self.depot.adapters:
                for job in list(adapter.keeping):
                    adapter.let_go(job)
                for job in list(adapter.waiting):
                    adapter.finish(job)
        self.depot.turn()
        for number in (0, 1):
            account = self.depot.snapshot(number)
            assert (account.waiting, account.in_flight, account.backlog_bytes) == (0, 0, 0), account
        census = self.depot.cache.contents.state_counts()
        assert (census.held, census.quarantined, census.leases) == (0, 0, 0), census
        assert self.depot.store.drain(0), self.depot.store.status()
        self.depot.close()


StoreMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestStores = StoreMachine.TestCase
