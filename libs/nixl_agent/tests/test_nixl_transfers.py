"""The transfer thread: what fails, hangs or is cancelled, and when memory is given back."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import pytest

from lmcache_nixl_agent.agent import Extent, Handle, NixlAgent, Segment
from lmcache_nixl_agent.flights import Transfer
from lmcache_nixl_agent.own_memory import OwnMemory
from lmcache_nixl_agent.transfers import TransferThread

TIMEOUT_SECONDS = 20.0
LOG = logging.getLogger("lmcache.l2.nixl.tests")
MOVE = Transfer(True, Extent(4096, 100), Segment.FILE, Extent(0, 100, 3), registers=True)


class ScriptedAgent:
    """Replaces NIXL: transfers end when the test says so."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.free = threading.Event()
        self.free.set()
        self.fails: Exception | None = None
        self.started = threading.Event()
        self.prepared = 0
        self.faulty: Handle | None = None
        """The handle that nothing can be learned of."""
        self.held_once: Handle | None = None
        """The one whose first release raises."""
        self.calls: list[str] = []
        self.at_begin: Callable[[], object] = lambda: None

    def register(self, segment: Segment, extents: Sequence[Extent]) -> Any:
        self.calls.append("register")
        return extents

    def deregister(self, registration: Any) -> None:
        self.calls.append("deregister")

    def prepare(self, **_: Any) -> Handle:
        if isinstance(self.fails, TypeError):
            raise self.fails
        self.prepared += 1
        return Handle(self.prepared)

    def begin(self, handle: Handle) -> None:
        if self.calls[-1:] == ["close"]:
            raise OSError(108, "NIXL was ended")
        self.at_begin()
        self.started.set()

    def has_ended(self, handle: Handle) -> bool:
        if handle == self.faulty:
            raise ZeroDivisionError("an unexpected fault")
        if self.done.is_set() and isinstance(self.fails, OSError):
            raise self.fails
        return self.done.is_set()

    def release(self, handle: Handle) -> bool:
        if handle == self.held_once:
            self.held_once = None
            raise ZeroDivisionError("an unexpected fault")
        if self.free.is_set():
            self.calls.append("release")
        return self.free.is_set()

    def close(self) -> None:
        self.calls.append("close")


@pytest.fixture
def agent() -> ScriptedAgent:
    return ScriptedAgent()


@pytest.fixture
def thread(agent: ScriptedAgent) -> Iterator[TransferThread]:
    thread = TransferThread("nixl-of-tests", LOG, lambda: cast(NixlAgent, agent))
    yield thread
    agent.done.set()
    agent.free.set()
    assert thread.close(TIMEOUT_SECONDS)


def test_a_transfer_is_over_when_nixl_has_released_it_and_its_place_is_given_back(
    thread: TransferThread, agent: ScriptedAgent
) -> None:
    ended = thread.submit(MOVE)
    assert agent.started.wait(TIMEOUT_SECONDS)
    assert not ended.done()
    agent.done.set()
    ended.result(TIMEOUT_SECONDS)
    assert agent.calls == ["register", "release", "deregister"]
    counts = thread.counters()
    assert (counts["transfers"], counts["failed_transfers"], counts["bytes_written"]) == (1, 0, 100)


def test_a_failed_transfer_that_nixl_still_holds_is_not_answered(thread: TransferThread, agent: ScriptedAgent) -> None:
    agent.fails = OSError(5, "no")
    agent.free.clear()
    agent.done.set()
    ended = thread.submit(MOVE)
    thread.call(lambda _: None).result(TIMEOUT_SECONDS)  # a turn later
    thread.call(lambda _: None).result(TIMEOUT_SECONDS)
    assert not ended.done(), "its memory may be touched still"
    agent.free.set()
    with pytest.raises(OSError, match="no"):
        ended.result(TIMEOUT_SECONDS)
    assert agent.calls == ["register", "release", "deregister"]
    assert thread.counters()["failed_transfers"] == 1


def test_what_the_bindings_refuse_fails_alone(thread: TransferThread, agent: ScriptedAgent) -> None:
    agent.fails = TypeError("no such descriptor")
    with pytest.raises(TypeError, match="no such descriptor"):
        thread.submit(MOVE).result(TIMEOUT_SECONDS)
    assert agent.calls == ["register", "deregister"]
    agent.fails = None
    agent.done.set()
    thread.submit(MOVE).result(TIMEOUT_SECONDS)


def test_a_transfer_that_nixl_faults_on_fails_alone(thread: TransferThread, agent: ScriptedAgent) -> None:
    agent.faulty = Handle(2)
    before, faulty, behind = (thread.submit(MOVE) for _ in range(3))
    with pytest.raises(ZeroDivisionError):
        faulty.result(TIMEOUT_SECONDS)
    agent.done.set()
    before.result(TIMEOUT_SECONDS)
    behind.result(TIMEOUT_SECONDS)
    counts = thread.counters()
    assert (counts["transfers"], counts["failed_transfers"], counts["transfers_in_flight"]) == (3, 1, 0)
    assert agent.calls.count("release") == agent.calls.count("deregister") == 3


def test_a_fault_of_the_thread_is_logged_and_those_that_had_ended_are_answered(
    thread: TransferThread, agent: ScriptedAgent, caplog: pytest.LogCaptureFixture
) -> None:
    agent.held_once = Handle(2)
    moving = [thread.submit(MOVE) for _ in range(3)]
    thread.call(lambda _: agent.done.set()).result(TIMEOUT_SECONDS)  # all end in one turn
    for ended in moving:
        ended.result(TIMEOUT_SECONDS)
    assert "a turn of the nixl thread raised" in caplog.text
    assert thread.counters()["transfers"] == 3


def test_a_cancellation_passes_when_the_transfer_has_ended(thread: TransferThread, agent: ScriptedAgent) -> None:
    async def scene() -> None:
        moving = asyncio.create_task(thread.move([MOVE, MOVE]))
        await asyncio.to_thread(agent.started.wait, TIMEOUT_SECONDS)
        for _ in range(2):
            moving.cancel()
            await asyncio.sleep(0)
        assert not moving.done(), "its memory is borrowed still"
        agent.done.set()
        with pytest.raises(asyncio.CancelledError):
            await moving

    asyncio.run(asyncio.wait_for(scene(), TIMEOUT_SECONDS))


def test_a_group_begins_when_the_one_before_has_ended_well(thread: TransferThread, agent: ScriptedAgent) -> None:
    async def scene() -> None:
        moving = asyncio.create_task(thread.move([MOVE, MOVE], (), [MOVE]))
        await asyncio.to_thread(agent.started.wait, TIMEOUT_SECONDS)
        await thread.do(lambda _: None)
        assert agent.prepared == 2
        agent.done.set()
        await moving
        assert agent.prepared == 3
        agent.fails = OSError(5, "the first")
        with pytest.raises(OSError, match="the first"):
            await thread.move([MOVE], [MOVE])
        assert agent.prepared == 4

    asyncio.run(asyncio.wait_for(scene(), TIMEOUT_SECONDS))


def test_what_has_ended_is_completed_before_the_next_is_begun(thread: TransferThread, agent: ScriptedAgent) -> None:
    agent.done.set()
    completed: list[bool] = []
    first: list[Future[None]] = []

    def ask(_: NixlAgent) -> None:
        first.append(thread.submit(MOVE))
        thread.call(lambda _: completed.append(first[0].done()))

    thread.call(ask).result(TIMEOUT_SECONDS)
    thread.call(lambda _: None).result(TIMEOUT_SECONDS)
    assert completed == [True], "the transfer and the order behind it were taken in one turn"


class Crowd:
    """Transfers that the thread finds all at once, and how often the loop was woken by then."""

    def __init__(self, thread: TransferThread, agent: ScriptedAgent, monkeypatch: pytest.MonkeyPatch) -> None:
        self.woken = 0
        self._thread = thread
        self._agent = agent
        self._monkeypatch = monkeypatch
        monkeypatch.setattr("lmcache_nixl_agent.transfers.TELL_SECONDS", 3600.0)

    async def move(self, moves: Sequence[Transfer], *, behind_first: Callable[[], object]) -> list[int]:
        """`woken` as each of them was begun.  An order that calls `behind_first` comes second."""
        loop, gate, at_begin = asyncio.get_running_loop(), threading.Event(), list[int]()
        wake = loop.call_soon_threadsafe

        def counted(*arguments: Any, **named: Any) -> Any:
            self.woken += 1
            return wake(*arguments, **named)

        self._agent.done.set()
        self._agent.at_begin = lambda: at_begin.append(self.woken)
        entered = threading.Event()

        def wait_at_gate(_: NixlAgent) -> None:
            entered.set()
            gate.wait(TIMEOUT_SECONDS)

        self._thread.call(wait_at_gate)
        assert entered.wait(TIMEOUT_SECONDS)  # all the rest is fetched in one turn, behind this order
        moving = [asyncio.create_task(self._thread.move([moves[0]]))]
        await asyncio.sleep(0)
        if behind_first is not nothing:
            self._thread.call(lambda _: behind_first())
        moving += [asyncio.create_task(self._thread.move([move])) for move in moves[1:]]
        await asyncio.sleep(0)
        with self._monkeypatch.context() as patch:
            patch.setattr(loop, "call_soon_threadsafe", counted)
            gate.set()
            await asyncio.gather(*moving)
        return at_begin


def nothing() -> None:
    pass


@pytest.fixture
def crowd(thread: TransferThread, agent: ScriptedAgent, monkeypatch: pytest.MonkeyPatch) -> Crowd:
    return Crowd(thread, agent, monkeypatch)


def test_stores_that_have_ended_are_completed_together_while_more_are_to_be_begun(crowd: Crowd) -> None:
    at_begin = asyncio.run(asyncio.wait_for(crowd.move([MOVE] * 8, behind_first=nothing), TIMEOUT_SECONDS))
    assert at_begin[:3] == [0, 0, 1]


def test_a_load_that_has_ended_is_completed_before_the_next_is_begun(crowd: Crowd) -> None:
    load = MOVE._replace(writes=False)
    at_begin = asyncio.run(asyncio.wait_for(crowd.move([load] * 8, behind_first=nothing), TIMEOUT_SECONDS))
    assert at_begin[:2] == [0, 1]


def test_no_store_waits_for_completion_behind_a_call_that_may_take_long(crowd: Crowd) -> None:
    completed: list[int] = []
    moving = crowd.move([MOVE] * 8, behind_first=lambda: completed.append(crowd.woken))
    asyncio.run(asyncio.wait_for(moving, TIMEOUT_SECONDS))
    assert completed == [1]


def test_no_store_waits_for_completion_behind_slow_ones(crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmcache_nixl_agent.transfers.TELL_SECONDS", 0.0)
    at_begin = asyncio.run(asyncio.wait_for(crowd.move([MOVE] * 8, behind_first=nothing), TIMEOUT_SECONDS))
    assert at_begin[:2] == [0, 1]


def test_all_end_before_one_failure_is_raised(thread: TransferThread, agent: ScriptedAgent) -> None:
    async def scene() -> None:
        agent.fails = OSError(5, "both")
        agent.done.set()
        with pytest.raises(OSError, match="both"):
            await thread.move([MOVE, MOVE])
        assert thread.counters()["transfers"] == 2

    asyncio.run(asyncio.wait_for(scene(), TIMEOUT_SECONDS))


def test_what_an_order_raises_is_raised_where_it_was_given(thread: TransferThread) -> None:
    known: dict[str, int] = {}
    with pytest.raises(KeyError, match="nothing"):
        thread.call(lambda _: known["nothing"]).result(TIMEOUT_SECONDS)


def test_closing_waits_for_transfers_and_no_longer_than_it_may(agent: ScriptedAgent) -> None:
    thread = TransferThread("nixl-of-tests", LOG, lambda: cast(NixlAgent, agent))
    ended = thread.submit(MOVE)
    assert not thread.close(0.01)
    with pytest.raises(RuntimeError, match="was closed"):
        thread.submit(MOVE)
    assert not ended.done()
    agent.done.set()
    assert thread.close(TIMEOUT_SECONDS)
    ended.result(0)


def test_what_is_cut_fails_once_nixl_has_ended_and_so_does_what_comes_later(
    thread: TransferThread, agent: ScriptedAgent
) -> None:
    remote = MOVE._replace(registers=False)
    moving = [thread.submit(remote) for _ in range(2)]
    assert agent.started.wait(TIMEOUT_SECONDS)
    thread.cut()
    for ended in moving:
        with pytest.raises(OSError, match="ended during the transfer"):
            ended.result(TIMEOUT_SECONDS)
    assert agent.calls == ["release", "release", "close"]
    with pytest.raises(OSError, match="NIXL was ended"):
        thread.submit(remote).result(TIMEOUT_SECONDS)
    assert thread.close(TIMEOUT_SECONDS)


def test_what_opening_raises_is_raised_and_leaves_no_thread() -> None:
    def refuse() -> NixlAgent:
        raise OSError("there is none")

    before = threading.active_count()
    with pytest.raises(OSError, match="there is none"):
        TransferThread("nixl-of-tests", LOG, refuse)
    for other in threading.enumerate():
        if other.name == "nixl-of-tests":
            other.join(TIMEOUT_SECONDS)
    assert threading.active_count() <= before


class TestWithNixl:
    """What users of the thread rely on of NIXL itself."""

    @pytest.fixture
    def posix(self) -> Iterator[TransferThread]:
        pytest.importorskip("nixl", reason="no build of NIXL is installed")
        thread = TransferThread("nixl-of-tests", LOG, lambda: NixlAgent.open("tests", "POSIX", {}))
        yield thread
        assert thread.close(TIMEOUT_SECONDS)

    def test_bytes_come_back_and_a_file_that_is_too_short_fails(self, posix: TransferThread, tmp_path: Path) -> None:
        memory = OwnMemory(8192)
        posix.call(memory.register).result(TIMEOUT_SECONDS)
        fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            memory[0:5001] = bytes(range(1, 168)) * 29 + bytes(158)
            first = memory[0:5001]
            self.move(posix, memory, fd, 5001, writes=True)
            assert (tmp_path / "file").read_bytes() == first
            memory[0:8192] = bytes(8192)
            self.move(posix, memory, fd, 5001, writes=False)
            assert memory[0:5002] == first + b"\0"
            with pytest.raises(OSError, match="NIXL could not carry out a transfer"):
                self.move(posix, memory, fd, 5002, writes=False)
        finally:
            os.close(fd)
            posix.call(memory.deregister).result(TIMEOUT_SECONDS)
            memory.close()

    def test_memory_that_was_not_registered_is_refused(self, posix: TransferThread, tmp_path: Path) -> None:
        memory = OwnMemory(4096)
        with (tmp_path / "file").open("wb") as file, pytest.raises(OSError, match="NIXL could not prepare"):
            self.move(posix, memory, file.fileno(), 100, writes=True)
        memory.close()

    def move(self, thread: TransferThread, memory: OwnMemory, fd: int, length: int, *, writes: bool) -> None:
        place = Extent(0, length, fd)
        thread.submit(Transfer(writes, memory.extent(0, length), Segment.FILE, place, True)).result(TIMEOUT_SECONDS)
