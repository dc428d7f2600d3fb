"""The store server does what a dictionary would, whatever is asked over however many connections."""

from __future__ import annotations

import tempfile
import time
from collections import OrderedDict
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from lmcache_l2_lm.frames import ANSWER_BYTES, Form, Request, Verb, pack_request, parse_answer
from lmcache_l2_lm.store_server.values import ENTRY_BYTES, SHARE_MAX
from plugins.l2_lm.tests.running import Client, Running, running

NAMES: Final = st.integers(0, 9)
CONNECTIONS: Final = st.integers(0, 2)
LENGTHS: Final = st.one_of(st.integers(0, 300), st.integers(30_000, 64_000), st.just(70_000))
FORMS: Final = st.builds(Form, st.integers(0, 8), st.integers(0, 8), st.tuples(*[st.integers(0, 2**31 - 1)] * 4))
BYTES_MAX: Final = 256 << 10
NEVER: Final = b"never@1@0@00@uint8"


def name(number: int) -> bytes:
    return f"org/model@2@{number}@{number:04x}@bfloat16".encode()


class AgainstDictionary(RuleBasedStateMachine):
    """A small store, so that values go: the least recently used one first."""

    def __init__(self) -> None:
        super().__init__()
        self.undo: Final = ExitStack()
        self.values: Final = OrderedDict[bytes, tuple[Form, bytes]]()

    @initialize()
    def begin(self) -> None:
        self.store = self.started()
        self.clients = [self.undo.enter_context(Client(self.store.port)) for _ in range(3)]

    def teardown(self) -> None:
        self.undo.close()

    def started(self) -> Running:
        """Until `undo` is closed."""
        raise NotImplementedError

    @rule(at=CONNECTIONS, number=NAMES, length=LENGTHS, fill=st.integers(0, 255), form=FORMS)
    def put(self, at: int, number: int, length: int, fill: int, form: Form) -> None:
        key, value = name(number), bytes([fill]) * length
        self.clients[at].put(key, value, form)
        if length + ENTRY_BYTES > BYTES_MAX * SHARE_MAX:
            self.values.pop(key, None)
        else:
            while self._used() + length + ENTRY_BYTES > BYTES_MAX:
                self.values.popitem(last=False)
            self.values.pop(key, None)
            self.values[key] = form, value
        assert self.clients[at].exists(key) is (key in self.values)  # a PUT has no answer: what follows it has

    @rule(at=CONNECTIONS, number=NAMES)
    def get(self, at: int, number: int) -> None:
        assert self.clients[at].get(name(number)) == self.values.get(name(number))
        assert not self.clients[at].exists(NEVER)  # its answer says that the value is not being sent any more
        self._use(name(number))

    @rule(at=CONNECTIONS, numbers=st.lists(NAMES, max_size=20))
    def ask_together(self, at: int, numbers: list[int]) -> None:
        client = self.clients[at]
        client.socket.sendall(b"".join(pack_request(Request(Verb.EXIST, name(number))) for number in numbers))
        answers = client.take(ANSWER_BYTES * len(numbers))
        found = [parse_answer(answers[i : i + ANSWER_BYTES]).found for i in range(0, len(answers), ANSWER_BYTES)]
        assert found == [name(number) in self.values for number in numbers]
        for number in numbers:
            self._use(name(number))

    @rule(at=CONNECTIONS, number=NAMES, length=st.integers(1, 30_000))
    def leave_in_the_middle(self, at: int, number: int, length: int) -> None:
        """Space is made for the value, which is not kept then: what was there under its key is."""
        while self._used() + length + ENTRY_BYTES > BYTES_MAX:
            self.values.popitem(last=False)
        self.clients[at].send(Verb.PUT, name(number), length, bytes(length - 1))
        self._wait_for(self._used() + length + ENTRY_BYTES)
        self.clients[at].socket.close()
        self.clients[at] = self.undo.enter_context(Client(self.store.port))
        self._wait_for(self._used())

    @invariant()
    def no_more_than_may_be(self) -> None:
        if hasattr(self, "store"):
            assert self.store.values.stats() == (len(self.values), self._used())

    def _used(self) -> int:
        return sum(len(value) + ENTRY_BYTES for _, value in self.values.values())

    def _use(self, key: bytes) -> None:
        if key in self.values:
            self.values.move_to_end(key)

    def _wait_for(self, used_bytes: int) -> None:
        end = time.monotonic() + 10
        while self.store.values.stats() != (len(self.values), used_bytes):
            assert time.monotonic() < end
            time.sleep(0.001)


class InMemory(AgainstDictionary):
    def started(self) -> Running:
        return self.undo.enter_context(running(BYTES_MAX))


class InFiles(AgainstDictionary):
    def started(self) -> Running:
        folder = self.undo.enter_context(tempfile.TemporaryDirectory())
        return self.undo.enter_context(running(BYTES_MAX, Path(folder, "values")))


@pytest.mark.parametrize("machine", [InMemory, InFiles])
def test_the_store_is_a_dictionary_of_limited_size(machine: Any) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=30, stateful_step_count=30, deadline=None))
