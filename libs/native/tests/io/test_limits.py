"""Limits hold what is too much back, in order, and refuse nothing."""

from __future__ import annotations

import errno
from pathlib import Path
from threading import Barrier, Thread

import pytest

from libs.native.tests.io.held_memory import PAGE, HeldMemory
from libs.native.tests.io.io_rig import Memory, Rig, opened
from lmcache_native.io import COPY, READ, SYNC, WRITE, IoEngine

KIB = 1024


@pytest.fixture
def held() -> HeldMemory:
    return HeldMemory()


def test_no_more_than_the_depth_is_in_flight(kind: str, held: HeldMemory) -> None:
    rig, memory = Rig(IoEngine(kind, 4, 2, 1 << 30)), Memory(64 * KIB)
    targets = [memory.address + number * PAGE for number in range(1, 6)]
    stuck = rig.submit(*[(COPY, held.address, target, 8, 0, -1) for target in targets[:2]])
    others = rig.submit(*[(COPY, memory.address, target, 8, 0, -1) for target in targets[2:]])
    counters = rig.engine.counters()
    assert (counters["in_flight"], counters["waiting"]) == (2, 3)
    held.release()
    assert rig.wait(stuck + others) == [(8, None)] * 5
    assert rig.engine.close(30)


def test_no_more_than_the_bytes_are_in_flight(kind: str, held: HeldMemory) -> None:
    """What is larger than the limit goes alone, and what is small does not overtake it."""
    rig, memory = Rig(IoEngine(kind, 4, 100, 32 * KIB)), Memory(128 * KIB)
    stuck = rig.submit((COPY, held.address, memory.address, 8, 0, -1))
    large = rig.submit((COPY, memory.address, memory.address + 64 * KIB, 64 * KIB, 0, -1))
    small = rig.submit((COPY, memory.address, memory.address + PAGE, 8, 0, -1))
    assert (rig.engine.counters()["in_flight"], rig.engine.counters()["waiting"]) == (1, 2)
    held.release()
    assert rig.wait(stuck + large + small) == [(8, None), (64 * KIB, None), (8, None)]
    assert rig.engine.close(30)


def test_many_threads_submit(rig: Rig) -> None:
    threads, rounds = 8, 200
    memory, taker = Memory(PAGE), Memory(threads * rounds * 64)
    barrier = Barrier(threads)

    def submit(number: int) -> None:
        barrier.wait()
        for round_ in range(rounds):
            mine = number * rounds + round_
            rig.engine.submit([(COPY, 1_000_000 + mine, memory.address, taker.address + mine * 64, 64, 0, 0)])

    before = rig.engine.counters()["operations"]
    started = [Thread(target=submit, args=(number,)) for number in range(threads)]
    for thread in started:
        thread.start()
    tokens = list(range(1_000_000, 1_000_000 + threads * rounds))
    assert {result for result, _ in rig.wait(tokens)} == {64}
    for thread in started:
        thread.join()
    assert rig.engine.counters()["operations"] == before + threads * rounds


def test_counters_add_up(kind: str) -> None:
    rig, memory = Rig(IoEngine(kind, 1, 8, 1 << 20)), Memory(PAGE)
    rig.do((COPY, memory.address, memory.address, 8, 0, -1), (SYNC, 1_000_000))
    assert rig.engine.counters() == {
        "operations": 2, "bytes_read": 0, "bytes_written": 0, "bounced": 0, "errors": 1, "in_flight": 0, "waiting": 0,
        "registered_bytes": 0,
    }  # fmt: skip
    assert rig.engine.close(30)


def test_addresses_of_nothing_are_answers(rig: Rig, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(PAGE))
    with opened(path) as fd:
        answers = rig.do((READ, fd, 0, 8, 100, 0, -1), (WRITE, fd, 0, 8, 100, 0, 0, 0))
    assert answers == [(-errno.EFAULT, None)] * 2
