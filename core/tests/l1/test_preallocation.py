"""Pages are there before stores need them, and stores go on where they are not available."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from lmcache_core.contracts.clock import SystemClock
from lmcache_core.l1.arena import Arena, Preallocation, anonymous_arena

MIB = 1 << 20


class Scarce(Arena):
    """Memory that runs out at `limit` bytes."""

    def __init__(self, size_bytes: int, limit: int) -> None:
        super().__init__(anonymous_arena(size_bytes)._memory)
        self.limit = limit
        self.refused = threading.Semaphore(0)

    def grow(self, end: int, step_bytes: int) -> int | None:
        grown = super().grow(min(end, self.limit), step_bytes)
        if grown == 0 and min(end, self.size_bytes) > self.limit:
            self.refused.release()
            return None
        return grown


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = anonymous_arena(64 * MIB)
    yield arena
    arena.close()


@pytest.fixture
def run() -> Iterator[Callable[[Preallocation], threading.Thread]]:
    """Runs it on a thread of its own, which ends with the test."""
    running: list[tuple[Preallocation, threading.Thread]] = []

    def start(growth: Preallocation) -> threading.Thread:
        thread = threading.Thread(target=growth.run)
        thread.start()
        running.append((growth, thread))
        return thread

    yield start
    for growth, thread in running:
        growth.stop()
        thread.join(10)
        assert not thread.is_alive()


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_all_of_it_is_allocated_at_the_start_with_its_progress_in_the_log(
    arena: Arena, run: Callable[[Preallocation], threading.Thread], caplog: pytest.LogCaptureFixture
) -> None:
    ticks = iter(range(1000))

    class Slow:
        def monotonic(self) -> float:
            return float(next(ticks))

        def wall_ns(self) -> int:
            return 0

    with caplog.at_level(logging.INFO):
        run(Preallocation(arena, arena.size_bytes, Slow()))
        wait_until(lambda: "l1 is allocated percent=100 gib=0.06" in caplog.text)
    assert arena.backed_bytes == arena.size_bytes
    assert "l1 is being allocated percent=25 gib=0.02 gib_per_second=" in caplog.text
    assert "percent=75" in caplog.text


def test_what_is_to_be_there_at_the_start_is_followed_by_what_lies_ahead(
    arena: Arena, run: Callable[[Preallocation], threading.Thread]
) -> None:
    run(Preallocation(arena, 20 * MIB, SystemClock()))
    wait_until(lambda: arena.backed_bytes == 20 * MIB)
    assert arena.back(0, 10 * MIB)
    assert arena.back(10 * MIB, 8 * MIB)
    wait_until(lambda: arena.backed_bytes == 26 * MIB)
    assert arena.back(40 * MIB, 4 * MIB)
    wait_until(lambda: arena.backed_bytes == 52 * MIB)
    assert arena.back(60 * MIB, 4 * MIB)
    wait_until(lambda: arena.backed_bytes == arena.size_bytes)


def test_a_little_is_there_before_anybody_asks(arena: Arena, run: Callable[[Preallocation], threading.Thread]) -> None:
    run(Preallocation(arena, 0, SystemClock()))
    wait_until(lambda: arena.backed_bytes == 8 * MIB)


def test_a_stop_ends_it_in_the_middle(
    arena: Arena, run: Callable[[Preallocation], threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    growth = Preallocation(arena, arena.size_bytes, SystemClock())
    steps = []

    def grow(end: int, step_bytes: int) -> int:
        steps.append(end)
        growth.stop()
        return step_bytes

    monkeypatch.setattr(arena, "grow", grow)
    run(growth).join(10)
    assert steps == [arena.size_bytes]


def test_memory_that_runs_out_is_tried_again(
    run: Callable[[Preallocation], threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmcache_core.l1.arena.RETRY_SECONDS", 0.01)
    arena = Scarce(64 * MIB, 24 * MIB)
    growth = Preallocation(arena, arena.size_bytes, SystemClock())
    thread = run(growth)
    for _ in range(3):
        assert arena.refused.acquire(timeout=10)
    assert growth.is_full
    assert arena.backed_bytes == 24 * MIB, "what was got stays"
    arena.limit = 64 * MIB
    assert arena.back(0, 60 * MIB)
    wait_until(lambda: not growth.is_full and arena.backed_bytes == arena.size_bytes)
    growth.stop()
    thread.join(10)
    arena.close()
