"""Stores, loads, lookups, stalls, releases and the end, in any order: nothing wrong is served, every job is answered once, and
borrowed memory is not touched once it was given back."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.completion import JobDone, JobId
from lmcache_core.contracts.l1_memory import BorrowedBuffer
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.object_header import HEADER_BYTES, check
from lmcache_core.model.results import Outcome
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context, object_key, payload_of
from lmcache_devkit.l2_driver import L2Driver
from plugins.serde.tests.chain.serdes import MIB, chain_of, wrapped
from plugins.serde.tests.chain.slow_adapter import SlowAdapter

KEYS = 4
MARK = b"\xa5"
LENGTHS = (1, 100, 5_000, 20_000)


class SerdeMachine(RuleBasedStateMachine):
    """The adapter inside answers on request, and may answer before it releases its buffers."""

    @initialize(
        names=st.sampled_from([("xor",), ("deflate",), ("deflate", "xor", "deflate")]), any_length=st.booleans()
    )
    def open(self, names: tuple[str, ...], any_length: bool) -> None:
        self.memory = BorrowedMemory(64 * MIB)
        context = adapter_context(self.memory)
        missing = Capability.NONE if any_length else Capability.ANY_LENGTH

        def open_inner(own: Any) -> SlowAdapter:
            self.inner = SlowAdapter(missing)
            return self.inner

        self.driver = L2Driver(wrapped(context, open_inner, chain_of(*names), memory_bytes=320 * 2**10))
        self.jobs: dict[JobId, tuple[str, list[tuple[ObjectKey, BorrowedBuffer]]]] = {}
        self.marked: set[JobId] = set()

    @rule(number=st.integers(0, KEYS - 1), repeat=st.integers(1, 3))
    def store(self, number: int, repeat: int) -> None:
        key = object_key(number)
        items = [(key, self.memory.sealed(key, payload_of(number, LENGTHS[number]))) for _ in range(repeat)]
        self.jobs[self.driver.submit_store(items)] = ("store", items)

    @rule(numbers=st.lists(st.integers(0, KEYS - 1), max_size=4))
    def load(self, numbers: list[int]) -> None:
        items = [(object_key(number), self.memory.lend(HEADER_BYTES + LENGTHS[number])) for number in numbers]
        self.jobs[self.driver.submit_load(items)] = ("load", items)

    @rule(numbers=st.lists(st.integers(0, KEYS - 1), max_size=3))
    def look_up(self, numbers: list[int]) -> None:
        self.jobs[self.driver.adapter.submit_lookup([object_key(number) for number in numbers])] = ("lookup", [])

    @rule(count=st.integers(1, 5))
    def answer(self, count: int) -> None:
        self.inner.answer(count)

    @rule(outcome=st.sampled_from([Outcome.TIMED_OUT, Outcome.FAILED, Outcome.REJECTED]))
    def give_up(self, outcome: Outcome) -> None:
        """The oldest job ends without its buffers."""
        self.inner.give_up(outcome)

    @rule()
    def release(self) -> None:
        self.inner.release()

    @rule(refuse=st.booleans())
    def take_no_jobs(self, refuse: bool) -> None:
        self.inner.refuses = refuse

    @rule()
    def look(self) -> None:
        self.driver.drain()
        self.check()

    @precondition(lambda self: hasattr(self, "driver") and not self.driver.closed)
    @rule()
    def close(self) -> None:
        self.driver.close(0.0)
        self.check()

    def check(self) -> None:
        answers = self.driver.answers()
        assert set(answers) <= set(self.jobs)
        assert set(answers.values()) <= {1}
        for completion in list(self.driver.seen):
            if isinstance(completion, JobDone):
                self.check_loaded(completion)
        for job, (_, items) in self.jobs.items():
            if job in answers and self.driver.released(job):
                for _, buffer in items:
                    if job in self.marked:
                        assert buffer.view == MARK * buffer.length, "memory was touched after it was given back"
                    buffer.view[:] = MARK * buffer.length
                self.marked.add(job)

    def check_loaded(self, done: JobDone) -> None:
        verb, items = self.jobs[done.job]
        if verb != "load" or done.job in self.marked:
            return
        for (key, buffer), outcome in zip(items, done.outcomes, strict=True):
            if outcome is Outcome.DONE:
                number = int.from_bytes(key.chunk_hash, "little")
                assert bytes(buffer.view[HEADER_BYTES:]) == payload_of(number, LENGTHS[number])
                assert check(buffer.view, key).outcome is Outcome.DONE

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        self.inner.go_on()
        if not self.driver.closed:
            self.driver.close(10.0)
        for job in self.jobs:
            self.driver.wait_released(job)
        self.check()
        assert self.driver.answers() == dict.fromkeys(self.jobs, 1)
        self.check()


TestSerdeMachine = SerdeMachine.TestCase
TestSerdeMachine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
