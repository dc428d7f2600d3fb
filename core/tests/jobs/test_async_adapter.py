"""What AsyncL2Adapter adds to an author's coroutines."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from lmcache_core import (
    AdapterContext,
    AsyncL2Adapter,
    Capability,
    ConfigError,
    JobDone,
    LentBuffer,
    LoadItem,
    ObjectKey,
    Offer,
    Outcome,
    ResourceError,
    StoreItem,
)
from lmcache_core.testing.l2_driver import WAIT_SECONDS, L2Driver
from lmcache_core.testing.l2_suite import L2AdapterSuite
from lmcache_core.testing.lent_memory import LentMemory, adapter_context, object_key

DONE, MISSING, REJECTED, FAILED = Outcome.DONE, Outcome.MISSING, Outcome.REJECTED, Outcome.FAILED
TIMED_OUT = Outcome.TIMED_OUT
A, B, C, D = map(object_key, range(4))


class Shelf(AsyncL2Adapter):
    """Keeps copies, and gives way to others at every step."""

    capabilities = Capability.DELETE

    async def started(self) -> None:
        self._objects: dict[bytes, bytes] = {}

    async def store(self, key: ObjectKey, buffer: LentBuffer) -> Outcome:
        await asyncio.sleep(0)
        self._objects[key.object_id] = bytes(buffer.view)
        return DONE

    async def load(self, key: ObjectKey, buffer: LentBuffer) -> Outcome:
        await asyncio.sleep(0)
        data = self._objects.get(key.object_id)
        if data is None:
            return MISSING
        if len(data) != buffer.length:
            return Outcome.DAMAGED
        buffer.view[:] = data
        return DONE

    async def contains(self, key: ObjectKey) -> bool:
        await asyncio.sleep(0)
        return key.object_id in self._objects

    async def delete(self, key: ObjectKey) -> Outcome:
        await asyncio.sleep(0)
        return DONE if self._objects.pop(key.object_id, None) else MISSING


def open_shelf(settings: None, context: AdapterContext) -> Shelf:
    return Shelf(context)


class TestShelf(L2AdapterSuite):
    offer = Offer("shelf", "For tests", f"{__name__}:open_shelf", capabilities=Shelf.capabilities)
    payload_bytes_max = 2**20

    @pytest.fixture
    def stalled(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
        go_on = threading.Event()
        go_on.set()
        for verb in ("store", "load", "contains", "delete"):
            method = getattr(Shelf, verb)

            async def waiting(self: Shelf, *arguments: Any, method: Any = method) -> Any:
                while not go_on.is_set():
                    await asyncio.sleep(0.002)
                return await method(self, *arguments)

            monkeypatch.setattr(Shelf, verb, waiting)

        @contextmanager
        def stalled() -> Iterator[None]:
            go_on.clear()
            try:
                yield
            finally:
                go_on.set()

        return stalled


class Scripted(AsyncL2Adapter):
    """Does what the test says, and writes down what it was asked."""

    capabilities = Capability.DELETE

    def __init__(self, context: AdapterContext, concurrency: int = 2, timeout_seconds: float = WAIT_SECONDS) -> None:
        self.calls: list[tuple[str, ObjectKey]] = []
        self.script: dict[tuple[str, ObjectKey], Callable[[], Awaitable[object]]] = {}
        self.was_stopped = threading.Event()
        super().__init__(context, concurrency, timeout_seconds)

    async def play(self, verb: str, key: ObjectKey, otherwise: object) -> object:
        self.calls.append((verb, key))
        step = self.script.get((verb, key))
        return otherwise if step is None else await step()

    async def store(self, key: ObjectKey, buffer: LentBuffer) -> Outcome:
        return await self.play("store", key, DONE)  # type: ignore[return-value]

    async def load(self, key: ObjectKey, buffer: LentBuffer) -> Outcome:
        return await self.play("load", key, DONE)  # type: ignore[return-value]

    async def contains(self, key: ObjectKey) -> bool:
        return await self.play("contains", key, True)  # type: ignore[return-value]

    async def delete(self, key: ObjectKey) -> Outcome:
        return await self.play("delete", key, DONE)  # type: ignore[return-value]

    async def stopped(self) -> None:
        self.was_stopped.set()


class Gate:
    """Something that a coroutine waits at.  A stubborn one is not left when it is cancelled."""

    def __init__(self, result: object = DONE, *, is_stubborn: bool = False) -> None:
        self.reached = threading.Semaphore(0)
        self.opened = threading.Event()
        self.cancelled = threading.Semaphore(0)
        self._result = result
        self._is_stubborn = is_stubborn

    async def __call__(self) -> object:
        self.reached.release()
        while not self.opened.is_set():
            try:
                await asyncio.sleep(0.002)
            except asyncio.CancelledError:
                self.cancelled.release()
                if not self._is_stubborn:
                    raise
        return self._result

    def wait_reached(self) -> None:
        assert self.reached.acquire(timeout=WAIT_SECONDS)


@pytest.fixture
def memory() -> LentMemory:
    return LentMemory(2**20)


@pytest.fixture
def adapter(request: pytest.FixtureRequest, memory: LentMemory) -> Iterator[Scripted]:
    adapter = Scripted(adapter_context(memory, name="scripted"), **getattr(request, "param", {}))
    yield adapter
    adapter.close(WAIT_SECONDS)
    assert adapter.was_stopped.wait(WAIT_SECONDS)


@pytest.fixture
def driver(adapter: Scripted) -> L2Driver:
    return L2Driver(adapter)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


@pytest.fixture
def stubborn() -> Iterator[Gate]:
    gate = Gate(is_stubborn=True)
    yield gate
    gate.opened.set()


def items(memory: LentMemory, *numbers: int) -> list[StoreItem]:
    return [StoreItem(object_key(number), memory.lend(64)) for number in numbers]


def having(**settings: float) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("adapter", [settings], indirect=True)


# Turns.


def test_up_to_concurrency_transfers_run_at_a_time(
    adapter: Scripted, driver: L2Driver, memory: LentMemory, gate: Gate
) -> None:
    adapter.script = {("store", object_key(number)): gate for number in range(6)}
    job = adapter.submit_store(items(memory, *range(6)))
    gate.wait_reached()
    gate.wait_reached()
    assert not gate.reached.acquire(timeout=0.05)
    assert adapter.in_flight == 6
    gate.opened.set()
    assert driver.finish(job) == (DONE,) * 6
    assert adapter.in_flight == 0


@having(concurrency=1)
def test_loads_overtake_stores_and_lookups_wait_for_neither(
    adapter: Scripted, driver: L2Driver, memory: LentMemory, gate: Gate
) -> None:
    adapter.script["store", A] = gate
    first = adapter.submit_store(items(memory, 0, 1))
    gate.wait_reached()
    last = adapter.submit_load([LoadItem(*item) for item in items(memory, 2)])
    assert driver.lookup(D) == (DONE,)
    gate.opened.set()
    driver.finish(first)
    driver.finish(last)
    assert adapter.calls == [("store", A), ("contains", D), ("load", C), ("store", B)]


@having(concurrency=1)
def test_loads_without_end_do_not_starve_a_store(
    adapter: Scripted, driver: L2Driver, memory: LentMemory, gate: Gate
) -> None:
    adapter.script["load", A] = gate
    loads = [adapter.submit_load([LoadItem(*item) for item in items(memory, 0)])]
    gate.wait_reached()
    loads += [adapter.submit_load([LoadItem(*item) for item in items(memory, 1)]) for _ in range(100)]
    store = adapter.submit_store(items(memory, 2))
    gate.opened.set()
    for job in (*loads, store):
        driver.finish(job)
    assert adapter.calls.index(("store", C)) < 50


def test_changes_to_one_object_never_overlap_and_come_in_their_order(
    adapter: Scripted, driver: L2Driver, memory: LentMemory, gate: Gate
) -> None:
    adapter.script["store", A] = gate
    store = adapter.submit_store(items(memory, 0))
    gate.wait_reached()
    delete = adapter.submit_delete([A])
    time.sleep(0.02)
    assert adapter.calls == [("store", A)]
    gate.opened.set()
    assert driver.finish(store) == driver.finish(delete) == (DONE,)
    assert adapter.calls == [("store", A), ("delete", A)]


def test_submitting_never_waits_for_a_loop_that_is_blocked(
    adapter: Scripted, driver: L2Driver, memory: LentMemory
) -> None:
    entered, blocked = threading.Event(), threading.Event()

    async def block() -> Outcome:
        entered.set()
        blocked.wait(WAIT_SECONDS)
        return DONE

    adapter.script["store", A] = block
    first = adapter.submit_store(items(memory, 0))
    assert entered.wait(WAIT_SECONDS)
    jobs = [adapter.submit_store(items(memory, 1)), adapter.submit_lookup([B]), adapter.submit_delete([C])]
    adapter.reject(D, Outcome.DAMAGED)
    assert driver.answers() == {}
    blocked.set()
    assert [driver.finish(job) for job in (first, *jobs)] == [(DONE,)] * 4


# Time-outs.


@having(timeout_seconds=0.05)
def test_what_takes_too_long_is_cancelled_and_has_let_go_of_its_buffer(
    adapter: Scripted, driver: L2Driver, memory: LentMemory, gate: Gate
) -> None:
    adapter.script = {("load", A): gate, ("contains", B): gate, ("delete", C): gate}
    batch = items(memory, 0, 3)
    job = adapter.submit_load([LoadItem(*item) for item in batch])
    assert driver.done(job) == JobDone(job, (TIMED_OUT, DONE), released=True)
    assert gate.cancelled.acquire(timeout=0)
    assert driver.lookup(B) == driver.delete(C) == (TIMED_OUT,)
    assert adapter.circuit.failures_in_a_row == 2, "the load and the lookup; what changes objects is counted apart"


@having(timeout_seconds=0.05)
def test_what_will_not_be_cancelled_keeps_its_buffer_until_it_ends(
    adapter: Scripted, driver: L2Driver, memory: LentMemory, stubborn: Gate
) -> None:
    adapter.script["store", A] = stubborn
    job = adapter.submit_store(items(memory, 0, 1))
    assert driver.done(job) == JobDone(job, (TIMED_OUT, DONE), released=False)
    assert driver.store(*items(memory, 2)) == (DONE,)  # there is room beside it
    assert driver.store(*items(memory, 0)) == (TIMED_OUT,)  # but not for a change of the same object
    assert adapter.completions().drain() == []
    stubborn.opened.set()
    driver.wait_released(job)
    assert driver.answers()[job] == 1
    adapter.script.clear()
    assert driver.store(*items(memory, 0)) == (DONE,)


@having(timeout_seconds=0.05)
def test_what_is_done_while_it_is_cancelled_is_done(adapter: Scripted, driver: L2Driver, memory: LentMemory) -> None:
    async def finish_anyway() -> Outcome:
        try:
            await asyncio.sleep(WAIT_SECONDS)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
        return DONE

    adapter.script["store", A] = finish_anyway
    job = adapter.submit_store(items(memory, 0))
    assert driver.done(job) == JobDone(job, (DONE,), released=True)


@having(timeout_seconds=0.05)
def test_a_lookup_that_came_too_late_leaves_no_pin(adapter: Scripted, driver: L2Driver) -> None:
    late = Gate(result=True, is_stubborn=True)
    adapter.script["contains", A] = late
    assert driver.lookup(A) == (TIMED_OUT,)
    assert driver.delete(A) == (REJECTED,)  # until it is known what becomes of it
    late.opened.set()
    end = time.monotonic() + WAIT_SECONDS
    while driver.delete(A) != (DONE,):
        assert time.monotonic() < end


@having(timeout_seconds=0.05)
def test_who_waits_for_his_turn_in_vain_passes_it_on(
    adapter: Scripted, driver: L2Driver, memory: LentMemory, stubborn: Gate
) -> None:
    adapter.script["delete", A] = stubborn
    slow = adapter.submit_delete([A])
    stubborn.wait_reached()
    assert driver.delete(A) == (TIMED_OUT,)
    assert driver.finish(slow) == (TIMED_OUT,)
    stubborn.opened.set()
    adapter.script.clear()
    assert driver.store(*items(memory, 0)) == (DONE,)
    assert adapter.calls == [("delete", A), ("store", A)]


def test_an_author_who_cancels_himself_has_failed(adapter: Scripted, driver: L2Driver, memory: LentMemory) -> None:
    async def cancel() -> Outcome:
        raise asyncio.CancelledError

    adapter.script["load", A] = cancel
    job = adapter.submit_load([LoadItem(*item) for item in items(memory, 0)])
    assert driver.done(job) == JobDone(job, (FAILED,), released=True)
    assert driver.load(*items(memory, 1)) == (DONE,)


# The end.


@having(concurrency=3)
def test_close_answers_everything_and_stays_within_its_deadline(
    adapter: Scripted,
    driver: L2Driver,
    memory: LentMemory,
    gate: Gate,
    stubborn: Gate,
    caplog: pytest.LogCaptureFixture,
) -> None:
    adapter.script = {("store", A): gate, ("store", B): stubborn, ("store", C): stubborn, ("contains", A): gate}
    lost = adapter.submit_store(items(memory, 0))
    stuck = adapter.submit_store(items(memory, 1, 2))
    for _ in range(2):
        stubborn.wait_reached()
    unstarted = adapter.submit_store(items(memory, 3))
    lookup = adapter.submit_lookup([A])
    gate.wait_reached()
    gate.wait_reached()
    begin = time.monotonic()
    adapter.close(0.2)
    assert time.monotonic() - begin < 2.0
    assert driver.done(lost) == JobDone(lost, (FAILED,), released=True)  # it ended when it was cancelled
    assert driver.done(stuck) == JobDone(stuck, (FAILED, FAILED), released=False)
    assert driver.done(unstarted) == JobDone(unstarted, (FAILED,), released=True)
    assert driver.done(lookup) == JobDone(lookup, (FAILED,), released=True)
    assert "objects=2" in caplog.text
    assert not adapter.was_stopped.is_set()
    adapter.close(0.2)
    assert driver.store(*items(memory, 5)) == driver.lookup(D) == (FAILED,)

    threading.Timer(0.1, stubborn.opened.set).start()
    adapter.close(WAIT_SECONDS)  # once more: it waits for the end
    assert adapter.was_stopped.is_set()
    driver.wait_released(stuck)
    assert set(driver.answers().values()) == {1}
    assert ("store", D) not in adapter.calls


def test_close_without_time_ends_nothing_early_that_was_not_begun(
    adapter: Scripted, driver: L2Driver, memory: LentMemory, gate: Gate
) -> None:
    adapter.script["store", A] = gate
    job = adapter.submit_store(items(memory, 0))
    gate.wait_reached()
    adapter.close(0)
    done = driver.done(job)
    assert done.outcomes == (FAILED,)
    if not done.released:
        driver.wait_released(job)
    assert adapter.was_stopped.wait(WAIT_SECONDS)


def test_the_thread_is_a_daemon_with_the_adapters_name_and_ends_with_it(adapter: Scripted) -> None:
    (mine,) = [thread for thread in threading.enumerate() if thread.name == "l2-scripted"]
    assert mine.daemon
    adapter.close(WAIT_SECONDS)
    assert not mine.is_alive()


def test_what_the_author_left_running_ends_with_the_adapter(memory: LentMemory) -> None:
    class WithHeartbeat(Scripted):
        async def started(self) -> None:
            self.heartbeat = asyncio.create_task(asyncio.sleep(WAIT_SECONDS))

    adapter = WithHeartbeat(adapter_context(memory))
    adapter.close(WAIT_SECONDS)
    assert adapter.was_stopped.is_set()
    assert adapter.heartbeat.cancelled()


def test_what_stopping_raises_is_logged(memory: LentMemory, caplog: pytest.LogCaptureFixture) -> None:
    class Untidy(Scripted):
        async def stopped(self) -> None:
            raise OSError("cannot let go")

    Untidy(adapter_context(memory)).close(WAIT_SECONDS)
    assert "cannot let go" in caplog.text


def test_a_stop_that_hangs_is_cut_off(
    memory: LentMemory, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hanging(Scripted):
        async def stopped(self) -> None:
            await asyncio.sleep(WAIT_SECONDS)

    monkeypatch.setattr("lmcache_core.jobs.loop_executor.STOP_SECONDS", 0.3)
    before = threading.active_count()
    Hanging(adapter_context(memory)).close(0.1)
    assert threading.active_count() == before
    assert "TimeoutError" in caplog.text


# The start.


def test_hooks_run_on_the_loop_that_runs_the_verbs(memory: LentMemory) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    class Curious(Shelf):
        async def started(self) -> None:
            await super().started()
            loops.append(asyncio.get_running_loop())

        async def contains(self, key: ObjectKey) -> bool:
            loops.append(asyncio.get_running_loop())
            return False

        async def stopped(self) -> None:
            loops.append(asyncio.get_running_loop())

    adapter = Curious(adapter_context(memory))
    L2Driver(adapter).lookup(A)
    adapter.close(WAIT_SECONDS)
    assert len(loops) == 3
    assert len(set(loops)) == 1


@pytest.mark.parametrize(
    ("raised", "expected", "message"),
    [
        (
            OSError("no route to host"),
            ResourceError,
            r"^shelf: the adapter could not be started .*no route to host.*check",
        ),
        (SystemExit(1), ResourceError, "could not be started .*SystemExit"),
        (asyncio.CancelledError(), ResourceError, "could not be started .*CancelledError"),
        (ConfigError("shelf: field 'address' is wrong"), ConfigError, "^shelf: field 'address' is wrong$"),
    ],
)
def test_what_starting_raises_stops_the_opening_and_leaves_nothing(
    memory: LentMemory, raised: BaseException, expected: type[Exception], message: str
) -> None:
    class Broken(Shelf):
        async def started(self) -> None:
            raise raised

    gc.collect()  # what earlier tests left
    before = (descriptors(), threading.active_count())
    for _ in range(20):
        with pytest.raises(expected, match=message) as refused:
            Broken(adapter_context(memory, name="shelf"))
        assert "\n" not in str(refused.value)
        del refused
        raised.with_traceback(None)
    assert (descriptors(), threading.active_count()) == before


def test_a_start_that_takes_too_long_is_cut_off(memory: LentMemory) -> None:
    class Slow(Shelf):
        async def started(self) -> None:
            await asyncio.sleep(WAIT_SECONDS)

    before = threading.active_count()
    with pytest.raises(ResourceError, match=r"could not be started within 0.05 s"):
        Slow(adapter_context(memory), operation_timeout_seconds=0.05)
    assert threading.active_count() == before


def test_a_start_that_cannot_be_cut_off_gives_back_what_it_opens_when_it_ends(
    memory: LentMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Scripted] = []

    class Stubborn(Scripted):
        async def started(self) -> None:
            opened.append(self)
            end = time.monotonic() + 0.4
            while time.monotonic() < end:
                try:
                    await asyncio.sleep(0.01)
                except asyncio.CancelledError:
                    pass

    monkeypatch.setattr("lmcache_core.jobs.loop_thread.STOP_SECONDS", 0.05)
    before = threading.active_count()
    with pytest.raises(ResourceError, match=r"could not be started within 0.05 s"):
        Stubborn(adapter_context(memory), timeout_seconds=0.05)
    assert opened[0].was_stopped.wait(WAIT_SECONDS)
    end = time.monotonic() + WAIT_SECONDS
    while threading.active_count() > before:
        assert time.monotonic() < end


@pytest.mark.parametrize("wrong", [{"concurrency": 0}, {"operation_timeout_seconds": 0.0}])
def test_settings_that_make_no_sense_are_refused(memory: LentMemory, wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="concurrency >= 1"):
        Shelf(adapter_context(memory), **wrong)  # type: ignore[arg-type]


def test_a_thousand_opens_and_closes_leave_no_thread_and_no_descriptor(memory: LentMemory) -> None:
    (item,) = items(memory, 0)
    for rounds in (5, 1_000):
        gc.collect()  # what earlier tests left
        before = (descriptors(), threading.active_count())
        for _ in range(rounds):
            adapter = Shelf(adapter_context(memory))
            assert L2Driver(adapter).store(item) == (DONE,)
            adapter.close(WAIT_SECONDS)
            del adapter
        after = (descriptors(), threading.active_count())
    assert after == before


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
