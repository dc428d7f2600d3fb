"""Hand-offs as engines see them: over a real server, and in every order of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from demo.server_process import ServerProcess
from lmcache_client import EngineChannel, EngineKey, Operation, encode_tokens
from lmcache_client.handoff import (
    CANCELLED,
    COMPLETE,
    HANDOFF_CANCEL,
    HANDOFF_CHUNK,
    HANDOFF_COMPLETE,
    HANDOFF_FOLLOW,
    HANDOFF_OPEN,
    HANDOFF_WAIT,
    HASH_BYTES,
    OPEN,
    UNKNOWN,
    HandoffState,
)
from lmcache_core import DEFERRED, Call, ProtocolError
from lmcache_p2p.handoffs import (
    ENGINES_MAX,
    HANDOFFS_MAX,
    HASHES_BYTES_MAX,
    WAITERS_MAX,
    HandoffModule,
    HandoffSettings,
)

LONG = 30.0
CHUNK_TOKENS = 16


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    options = ["--l1-size-gb", "0.0625", "--chunk-size", str(CHUNK_TOKENS), "--pd-handoff-seconds", "1"]
    with ServerProcess(options, tmp_path_factory.mktemp("server") / "log") as process:
        yield process


@pytest.fixture
def channel(server: ServerProcess) -> Iterator[EngineChannel]:
    with EngineChannel(f"tcp://127.0.0.1:{server.port}", timeout_seconds=10) as channel:
        yield channel


def key(chunks: int, first: int = 0) -> EngineKey:
    """Of a prompt of this number of chunks."""
    end = chunks * CHUNK_TOKENS
    return EngineKey("model", 1, None, encode_tokens(range(first, first + end)), 0, end, "r")


def wait(channel: EngineChannel, handoff_id: str, known: int = 0, seconds: float = LONG) -> tuple[str, int]:
    state = channel.call(HANDOFF_WAIT, handoff_id, known, seconds, timeout_seconds=seconds + 10)
    return state.state, state.chunks


@pytest.mark.parametrize(("last", "state"), [(HANDOFF_COMPLETE, COMPLETE), (HANDOFF_CANCEL, CANCELLED)])
def test_one_that_waits_hears_of_each_step(channel: EngineChannel, last: Operation, state: str) -> None:
    assert "handoff_wait" in (channel.hello() or SimpleNamespace(operations=())).operations
    name = f"one {state}"
    opened = channel.submit(HANDOFF_WAIT, name, -1, LONG, timeout_seconds=LONG)
    channel.call(HANDOFF_OPEN, name, key(3))
    assert opened.result(10) == HandoffState(OPEN, 0)
    waiting = channel.submit(HANDOFF_WAIT, name, 0, LONG, timeout_seconds=LONG)
    channel.call(HANDOFF_CHUNK, name, 2)
    said = waiting.result(10)
    assert (said.state, said.chunks, len(said.hashes)) == (OPEN, 2, 2 * HASH_BYTES)
    waiting = channel.submit(HANDOFF_WAIT, name, 2, LONG, timeout_seconds=LONG)
    channel.call(HANDOFF_CHUNK, name, 1)
    channel.call(last, name)
    chunks = 3 if last is HANDOFF_COMPLETE else 2
    said = waiting.result(10)
    assert (said.state, said.chunks, len(said.hashes)) == (state, chunks, (chunks - 2) * HASH_BYTES)
    assert wait(channel, name) == (state, chunks), "a hand-off may be used twice"


def test_one_that_is_forged_or_late_is_not_waited_for(channel: EngineChannel) -> None:
    assert wait(channel, "forged") == (UNKNOWN, 0)
    channel.call(HANDOFF_COMPLETE, "late")
    assert wait(channel, "late") == (COMPLETE, 0)
    channel.call(HANDOFF_OPEN, "late 2", key(1))
    assert wait(channel, "late 2", seconds=1.2) == (OPEN, 0), "prefill died"
    assert (wait(channel, "late"), wait(channel, "late 2")) == ((UNKNOWN, 0),) * 2
    assert wait(channel, "never opened", -1, 0.05) == (UNKNOWN, 0)


def test_ids_and_times_are_checked(channel: EngineChannel) -> None:
    for handoff_id, seconds in (("", 1.0), ("x" * 257, 1.0), ("x", float("nan"))):
        state = channel.call(HANDOFF_WAIT, handoff_id, -1, seconds)
        assert state == HandoffState(UNKNOWN), "at once"
    with pytest.raises(ValueError, match="seconds"):
        HandoffSettings(seconds=0)


def test_one_of_another_server_is_not_waited_for_without_peers(channel: EngineChannel) -> None:
    channel.call(HANDOFF_FOLLOW, "elsewhere", "another", -1, key(2))
    assert wait(channel, "elsewhere", -1) == (CANCELLED, 0)
    hello = channel.hello()
    assert hello is not None
    channel.call(HANDOFF_FOLLOW, "own", hello.instance_id, -1, key(2))
    assert wait(channel, "own", 0) == (UNKNOWN, 0), "there is nothing to follow"


class FakeCall:
    def __init__(self, answers: list[HandoffState]) -> None:
        self.answers = answers
        self.seconds = 0.0

    def defer(self, seconds: float, fallback: HandoffState) -> None:
        self.seconds, self.fallback = seconds, fallback

    def reply(self, result: HandoffState) -> bool:
        self.answers.append(result)
        return True


class FakeHasher:
    """The hash of a chunk is its number."""

    def chunk_hashes(self, token_ids: Any, end: int) -> list[bytes]:
        return [number.to_bytes(HASH_BYTES, "big") for number in range(end // CHUNK_TOKENS)]


def module_at(now: Callable[[], float], seconds: float = 1.0) -> HandoffModule:
    clock = SimpleNamespace(monotonic=now)
    context: Any = SimpleNamespace(clock=clock, hasher=FakeHasher(), boot_id="test")
    return HandoffModule(HandoffSettings(seconds=seconds), context)


def test_engines_with_a_role_are_part_of_the_servers_metadata() -> None:
    module, call = module_at(lambda: 0.0), cast(Call, None)
    assert module.status()["member_metadata"] == {}
    module.engine(call, "http://p:1", "producer")
    module.engine(call, "http://b:1", "both")
    module.engine(call, "http://d:1", "both")
    module.engine(call, "http://d:1", "receiver")
    found = {"prefill_urls": ["http://p:1", "http://b:1"], "decode_urls": ["http://b:1", "http://d:1"]}
    assert module.status()["member_metadata"] == found
    module.engine(call, "http://b:1", "")
    module.engine(call, "http://unknown:1", "")
    assert module.status()["member_metadata"] == {"prefill_urls": ["http://p:1"], "decode_urls": ["http://d:1"]}
    for number in range(ENGINES_MAX):
        module.engine(call, f"http://p:{number + 2}", "producer")
    assert set(cast(Any, module.status()["member_metadata"])) == {"prefill_urls"}, "the first ones are forgotten"


@pytest.mark.parametrize(
    ("url", "role"), [("http://p:1", "x" * 999), ("p:1", "both"), ("http://" + "p" * 999, "both"), ("http://\x1b[", "")]
)
def test_an_engines_address_and_role_are_checked(url: str, role: str) -> None:
    module = module_at(lambda: 0.0)
    with pytest.raises(ProtocolError, match=r"engine|role"):
        module.engine(cast(Call, None), url, role)
    assert module.status()["member_metadata"] == {}


class Machine(RuleBasedStateMachine):
    """Against a plain model: a state, a count and a length for each id, forgotten after a second without a change."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.module = module_at(lambda: self.now)
        self.model: dict[str, tuple[str, int, int, float]] = {}
        self.waiting: list[tuple[str, int, list[HandoffState]]] = []

    ids = st.sampled_from(["a", "b"])

    def said(self, name: str, known: int) -> HandoffState:
        state, chunks, length, _ = self.model.get(name, (UNKNOWN, 0, 0, 0.0))
        news = [number.to_bytes(HASH_BYTES, "big") for number in range(max(0, known), min(chunks, length))]
        return HandoffState(state, chunks, b"".join(news), 1 if news else 0)

    @rule(name=ids, step=st.sampled_from(["open", "chunk", "complete", "cancel"]), count=st.integers(0, 4))
    def step(self, name: str, step: str, count: int) -> None:
        self.forget()
        arguments = {"open": (key(count),), "chunk": (count,)}.get(step, ())
        getattr(self.module, step)(FakeCall([]), name, *arguments)
        state, chunks, length, _ = self.model.get(name, (UNKNOWN, 0, 0, self.now))
        if step == "chunk" and state in (COMPLETE, CANCELLED):
            return
        if step == "open" and length != count:
            chunks, length = 0, count
        if step == "chunk":
            chunks = max(chunks, min(count, length) if length else count)
        elif step == "complete":
            chunks = max(chunks, length)
        state = {"open": OPEN, "chunk": OPEN, "complete": COMPLETE, "cancel": CANCELLED}[step]
        self.model[name] = (state, chunks, length, self.now)
        left = []
        for waiter in self.waiting:
            of, known, answers = waiter
            if of == name and (state != OPEN or chunks > known):
                assert answers == [self.said(name, known)]
            else:
                assert answers == []
                left.append(waiter)
        self.waiting = left

    @rule(name=ids, known=st.integers(-1, 3))
    def wait(self, name: str, known: int) -> None:
        self.forget()
        call = FakeCall([])
        answer = self.module.wait(call, name, known, LONG)
        state, chunks, _, _ = self.model.get(name, (UNKNOWN, 0, 0, 0.0))
        if name not in self.model and known < 0:
            self.model[name] = (UNKNOWN, 0, 0, self.now)
        waits = (state == UNKNOWN and (known < 0 or name in self.model)) or (state == OPEN and chunks <= known)
        if waits:
            assert answer is DEFERRED
            assert (call.seconds, call.fallback) == (LONG, self.said(name, known))
            assert self.module.is_awaited(name)
            self.waiting.append((name, known, call.answers))
        else:
            assert answer == self.said(name, known)

    @rule(seconds=st.sampled_from([0.4, 1.1]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    def forget(self) -> None:
        for name, (_, _, _, changed) in list(self.model.items()):
            if changed < self.now - 1.0:
                del self.model[name]
                self.waiting = [waiter for waiter in self.waiting if waiter[0] != name]


TestMachine = Machine.TestCase


def test_forgotten_beyond_the_limits() -> None:
    module = module_at(lambda: 0.0)
    call: Any = FakeCall([])
    for number in range(HANDOFFS_MAX + 1):
        module.open(call, str(number), key(0))
    assert module.status()["handoffs"] == {OPEN: HANDOFFS_MAX}
    assert module.wait(call, "0", 0, LONG) == HandoffState(UNKNOWN)
    chunks = HASHES_BYTES_MAX // HASH_BYTES // 2
    long = EngineKey("model", 1, None, encode_tokens([]), 0, chunks * CHUNK_TOKENS, "r")
    for number in range(4):
        module.open(call, f"long {number}", long)
    assert module.status()["handoffs"] == {OPEN: 2}, "their hashes have so much memory"


@pytest.mark.parametrize("names", [["one"], ["one", "two", "three"]])
def test_waits_are_bounded_and_those_that_are_over_do_not_count(names: list[str]) -> None:
    now = 0.0
    module = module_at(lambda: now, 60.0)
    call: Any = FakeCall([])
    for name in names:
        module.open(call, name, key(0))
    for number in range(WAITERS_MAX):
        assert module.wait(call, names[number % len(names)], 0, 1.0) is DEFERRED
    with pytest.raises(ProtocolError, match=f"{WAITERS_MAX} requests wait"):
        module.wait(call, names[0], 0, 1.0)
    now = 1.5
    assert module.wait(call, names[0], 0, 1.0) is DEFERRED
    module.complete(call, names[0])
    assert call.answers == [HandoffState(COMPLETE, 0)], "what was answered in time is not answered again"


def test_status(server: ServerProcess, channel: EngineChannel, tmp_path: Path) -> None:
    channel.call(HANDOFF_OPEN, "seen", key(1))
    assert server.status()["modules"]["handoffs"]["handoffs"][OPEN] >= 1
