"""A server that is not there, goes away, comes back, is slow or full: it costs the cache, and nothing else."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from demo.server_process import ServerProcess
from engines.vllm.tests.test_worker_transfers import OPTIONS, TOKENS, failing, quiet
from engines.vllm.tests.worker_kit import fused_hnd, rig, transfer, until
from lmcache_vllm.metadata import StepPlan
from lmcache_vllm.placement import CacheGroup, Placement
from lmcache_vllm.settings import Settings
from lmcache_vllm.transfer_pages import ChunkPages
from lmcache_vllm.transfer_registration import Registration
from lmcache_vllm.transfer_task import TransferTask
from lmcache_vllm.worker import COPY_SECONDS, FENCE_SECONDS, WorkerSide
from lmcache_vllm.worker_board import TransferBoard

BLOCKS = [[*range(1, 9)]]
OTHERS = [[*range(21, 29)]]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(OPTIONS, tmp_path / "log")
    try:
        yield process
    finally:
        if process.running:
            process.stop()  # in an orderly way, so that it takes its shared memory along


@pytest.fixture
def running(server: ServerProcess) -> ServerProcess:
    server.start()
    return server


def test_without_a_server_everything_fails_at_once_and_one_that_comes_is_used(server: ServerProcess) -> None:
    paged = fused_hnd()
    with rig(server.port, paged) as worker:
        failing(worker, "no_server")
        server.start()
        before = paged.blocks_of(BLOCKS)
        assert worker.until(lambda: worker.side._usable)
        worker.store(transfer(TOKENS, BLOCKS))
        worker.load(transfer(TOKENS, OTHERS))
        for expected, found in zip(before, paged.blocks_of(OTHERS), strict=True):
            np.testing.assert_array_equal(found, expected)


def test_a_server_that_was_started_again_is_used_again(running: ServerProcess) -> None:
    paged = fused_hnd()
    with rig(running.port, paged) as worker:
        worker.store(transfer(TOKENS, BLOCKS))
        running.kill()
        assert worker.until(lambda: not worker.side._usable)
        worker.received.clear()
        worker.load(transfer(TOKENS, OTHERS))
        assert worker.failed_blocks == set(OTHERS[0])
        running.start()
        assert worker.until(lambda: worker.side._usable)
        worker.load(transfer(TOKENS, OTHERS, request="after"))
        assert worker.counts["failed_loads:missing"] == 1
        worker.store(transfer(TOKENS, BLOCKS))
        worker.load(transfer(TOKENS, OTHERS, request="again"))
        assert (worker.counts["stores"], worker.counts["loads"], worker.counts["lost_servers:worker"]) == (2, 1, 1)


def test_a_restart_between_two_heartbeats_is_noticed(running: ServerProcess) -> None:
    """No ping is lost, the next one is answered by another server: its slots must not be looked for in the old memory."""
    paged = fused_hnd()
    with rig(running.port, paged, heartbeat_seconds=3.0) as worker:
        worker.store(transfer(TOKENS, BLOCKS))
        running.kill()
        running.start()
        worker.store(transfer([token + 1 for token in TOKENS], BLOCKS))
        assert worker.counts["store_bytes"] == worker.paged.blocks_of(BLOCKS)[0].nbytes * 3  # of the first one alone
        worker.load(transfer([token + 1 for token in TOKENS], OTHERS))
        assert worker.failed_blocks == set(OTHERS[0])
        assert worker.until(lambda: worker.counts.get("lost_servers:worker") == 1)
        assert worker.until(lambda: worker.side._usable)
        worker.store(transfer(TOKENS, BLOCKS))
        worker.load(transfer(TOKENS, OTHERS, request="again"))
        assert worker.counts["loads"] == 1


def test_a_frozen_server_costs_one_time_out(running: ServerProcess) -> None:
    paged = fused_hnd()
    with rig(running.port, paged, timeout_seconds=0.5, heartbeat_seconds=0.5) as worker:
        running.pause()
        try:
            started = time.monotonic()
            for number in range(20):
                one = transfer(TOKENS, BLOCKS, request=f"s{number}", salt=str(number))
                worker.step(stores=(one,), loads=(transfer(TOKENS, OTHERS, request=f"l{number}"),))
            assert time.monotonic() - started < 5  # the model's thread never waits
            assert worker.until(lambda: len(worker.received) == 20 and len(worker.over) == 40)
            no_answer = worker.counts.get("failed_stores:no_answer", 0) + worker.counts.get("failed_loads:no_answer", 0)
            assert 1 <= no_answer <= 4, worker.counts
        finally:
            running.resume()
        assert worker.until(lambda: worker.side._usable)
        worker.store(transfer(TOKENS, BLOCKS, salt="after"))
        worker.load(transfer(TOKENS, OTHERS, request="after", salt="after"))
        assert worker.counts["loads"] == 1
    assert until(lambda: quiet(running)), running.status()["l1"]


def test_a_store_that_stops_half_way_publishes_nothing(running: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ChunkPages.gather

    def broken(self: ChunkPages, *args: object) -> int:
        real(self, *args)  # type: ignore[arg-type]
        raise OSError("a page is gone")

    paged = fused_hnd()
    with rig(running.port, paged) as worker:
        monkeypatch.setattr(ChunkPages, "gather", broken)
        worker.store(transfer(TOKENS, BLOCKS))
        assert worker.counts["failed_stores:copy"] == 1
        monkeypatch.undo()
        assert until(lambda: quiet(running))
        worker.load(transfer(TOKENS, OTHERS))
        assert worker.counts["failed_loads:missing"] == 1
        worker.store(transfer(TOKENS, BLOCKS))
        assert worker.counts["stores"] == 1
        worker.load(transfer(TOKENS, OTHERS, request="again"))
        assert worker.counts["loads"] == 1


def test_a_bug_in_a_copy_costs_a_registration_and_no_lease(
    running: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: ChunkPages, *args: object) -> int:
        raise KeyError("a bug")

    with rig(running.port, fused_hnd()) as worker:
        monkeypatch.setattr(ChunkPages, "gather", broken)
        worker.store(transfer(TOKENS, BLOCKS))
        assert worker.counts["failed_stores:error"] == 1
        monkeypatch.undo()
        assert worker.until(lambda: quiet(running) and worker.side._usable)
        worker.store(transfer(TOKENS, BLOCKS))
        assert worker.counts["stores"] == 1


def test_a_partly_copied_load_names_what_is_not_there(running: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmcache_vllm.transfer_pages.BATCH_BYTES", 1)
    real = ChunkPages.scatter

    def third_fails(self: ChunkPages, tables: Any, chunks: list[int], addresses: Any, layer: int | None = None) -> int:
        if list(chunks) == [2]:
            raise OSError("a page is gone")
        return real(self, tables, chunks, addresses, layer)

    with rig(running.port, fused_hnd()) as worker:
        worker.store(transfer(TOKENS, BLOCKS))
        monkeypatch.setattr(ChunkPages, "scatter", third_fails)
        worker.load(transfer(TOKENS, OTHERS))
        assert worker.failed_blocks == set(OTHERS[0][4:])
        assert worker.counts["failed_loads:copy"] == 1
    assert until(lambda: quiet(running))


@pytest.mark.parametrize("direction", ["store", "load"])
def test_a_worker_that_was_stopped_for_too_long_trusts_no_slot(
    running: ServerProcess, monkeypatch: pytest.MonkeyPatch, direction: str
) -> None:
    with rig(running.port, fused_hnd()) as worker:
        if direction == "load":
            worker.store(transfer(TOKENS, BLOCKS))
        monkeypatch.setattr(Registration, "is_fenced", True)
        one = transfer(TOKENS, OTHERS)
        worker.store(one) if direction == "store" else worker.load(one)
        assert worker.counts[f"failed_{direction}s:too_late"] == 1
        monkeypatch.undo()
        if direction == "store":
            worker.load(transfer(TOKENS, OTHERS))
            assert worker.counts["failed_loads:missing"] == 1
        else:
            assert worker.failed_blocks == set(OTHERS[0])
    assert until(lambda: quiet(running))


def test_a_fence_ends_stores_before_their_blocks_change(
    running: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that is still queued or under way never reads what the next step writes."""
    monkeypatch.setattr("lmcache_vllm.transfer_pages.BATCH_BYTES", 1)
    monkeypatch.setattr("lmcache_vllm.worker.COPY_SECONDS", 0.05)
    entered, proceed = threading.Event(), threading.Event()
    real = ChunkPages.gather

    def slow(self: ChunkPages, *args: object) -> int:
        entered.set()
        proceed.wait(0.2)
        return real(self, *args)  # type: ignore[arg-type]

    paged = fused_hnd()
    with rig(running.port, paged) as worker:
        monkeypatch.setattr(ChunkPages, "gather", slow)
        copying = transfer(TOKENS, BLOCKS, request="a")
        queued = transfer([token + 1 for token in TOKENS], BLOCKS, request="a")
        worker.step(stores=(copying, queued))
        assert entered.wait(10)
        worker.side.on_step(StepPlan(fence=frozenset({copying.id, queued.id})))
        paged.wipe()  # now the blocks belong to another request
        proceed.set()
        assert worker.until(lambda: {copying.id, queued.id} <= worker.over.keys())
        assert worker.until(lambda: worker.counts.get("failed_stores:cancelled") == 2)
        monkeypatch.undo()
        worker.load(transfer(TOKENS, OTHERS))
        assert worker.failed_blocks == set(OTHERS[0])
    assert until(lambda: quiet(running))


def test_a_fence_lets_a_store_that_is_nearly_done_end(running: ServerProcess) -> None:
    with rig(running.port, fused_hnd()) as worker:
        one = transfer(TOKENS, BLOCKS, request="a")
        worker.step(stores=(one,))
        assert worker.until(lambda: worker.counts.get("stores") == 1)
        worker.step(fence=frozenset({one.id}))
        assert worker.over == {one.id: 1}


def test_a_step_waits_for_the_copies_of_stores_whose_blocks_it_takes(
    running: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To copy is sooner done than to compute again, however many bytes there are."""
    monkeypatch.setattr("lmcache_vllm.transfer_pages.BATCH_BYTES", 1)
    monkeypatch.setattr("lmcache_vllm.worker.COPY_SECONDS", 60.0)
    entered, never = threading.Event(), threading.Event()
    real = ChunkPages.gather

    def slow(self: ChunkPages, *args: object) -> int:
        entered.set()
        never.wait(2 * FENCE_SECONDS)
        return real(self, *args)  # type: ignore[arg-type]

    paged = fused_hnd()
    with rig(running.port, paged, heartbeat_seconds=10.0) as worker:
        monkeypatch.setattr(ChunkPages, "gather", slow)
        first = transfer(TOKENS, BLOCKS)
        second = transfer([token + 1 for token in TOKENS], BLOCKS)
        worker.step(stores=(first, second))
        assert entered.wait(10)
        worker.side.on_step(StepPlan(fence=frozenset({first.id, second.id})))
        paged.wipe()  # now the blocks belong to another request
        assert worker.until(lambda: worker.counts.get("stores") == 2)
        assert {first.id, second.id} <= worker.over.keys()
    assert until(lambda: quiet(running))


def test_after_a_long_step_the_next_one_waits_for_the_server_as_well(running: ServerProcess) -> None:
    """A busy server's answer is cheap beside what took a minute to compute."""
    with rig(running.port, fused_hnd(), heartbeat_seconds=10.0) as worker:
        one = transfer(TOKENS, BLOCKS)
        running.pause()
        goes_on = threading.Timer(3 * FENCE_SECONDS, running.resume)
        goes_on.start()
        try:
            worker.step(stores=(one,))
            worker.side._step_seconds = 60.0
            worker.side.on_step(StepPlan(fence=frozenset({one.id})))
        finally:
            goes_on.join()
        assert worker.until(lambda: worker.counts.get("stores") == 1)
    assert until(lambda: quiet(running))


def test_a_step_never_waits_longer_than_for_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the one before took: the time-out for the server is part of it."""
    waits: list[float] = []

    def wait_for_stores(_: TransferBoard, tasks: Iterable[TransferTask], seconds: float) -> list[TransferTask]:
        waits.append(seconds)
        return list(tasks)

    monkeypatch.setattr(TransferBoard, "wait_for_stores", wait_for_stores)
    monkeypatch.setattr("lmcache_vllm.worker.time", SimpleNamespace(monotonic=lambda: sum(waits)))
    side = WorkerSide(Settings(), Placement("model", 1, 0), (CacheGroup(("layer",), 8),), None)
    one = TransferTask(transfer(TOKENS, BLOCKS))
    one._copies = True
    side._board.begin_store(one)
    side._step_seconds = 9.5
    side.on_step(StepPlan(fence=frozenset({one.transfer.id})))
    assert len(waits) == 2
    assert sum(waits) == pytest.approx(COPY_SECONDS)


def test_a_step_does_not_wait_for_a_store_that_waits_for_the_server(
    running: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmcache_vllm.worker.COPY_SECONDS", 60.0)
    with rig(running.port, fused_hnd(), heartbeat_seconds=10.0) as worker:
        one = transfer(TOKENS, BLOCKS)
        running.pause()
        try:
            worker.step(stores=(one,))
            worker.side.on_step(StepPlan(fence=frozenset({one.id})))
        finally:
            running.resume()
        assert worker.until(lambda: worker.counts.get("failed_stores:cancelled") == 1)
    assert until(lambda: quiet(running))


def test_what_waited_too_long_in_the_queue_is_abandoned(
    running: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM keeps blocks, and a request waits, no longer than for one answer more, however slow those before are."""
    entered, proceed = threading.Event(), threading.Event()
    real = ChunkPages.gather

    def slow(self: ChunkPages, *args: object) -> int:
        entered.set()
        assert proceed.wait(10)
        return real(self, *args)  # type: ignore[arg-type]

    with rig(running.port, fused_hnd(), timeout_seconds=0.2) as worker:
        monkeypatch.setattr(ChunkPages, "gather", slow)
        monkeypatch.setattr(ChunkPages, "scatter", slow)
        first, second = (transfer([token + more for token in TOKENS], BLOCKS) for more in (0, 1))
        worker.step(stores=(first,))
        assert entered.wait(10)
        worker.step(stores=(second,))
        time.sleep(0.3)  # longer than it may wait
        proceed.set()
        assert worker.until(lambda: {first.id, second.id} <= worker.over.keys())
        assert worker.until(lambda: worker.counts.get("stores") == 1)
        assert worker.counts["failed_stores:behind"] == 1

        entered.clear()
        proceed.clear()
        one, two = (transfer(TOKENS, OTHERS, request=name) for name in ("one", "two"))
        worker.step(loads=(one,))
        assert entered.wait(10)
        worker.step(loads=(two,))
        time.sleep(0.3)  # longer than it may wait
        proceed.set()
        assert worker.until(lambda: sorted(worker.received) == ["one", "two"])
        assert worker.counts["failed_loads:behind"] == 1
        assert worker.failed_blocks == set(OTHERS[0])


def test_memory_that_is_not_the_servers_is_not_touched(
    running: ServerProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("lmcache_client.l1_segment.SHM_ROOT", Path("/nonexistent"))
    with rig(running.port, fused_hnd()) as worker:
        failing(worker, "no_server")
        assert "share /dev/shm" in caplog.text
        assert until(lambda: running.status()["workers"] == [])


def test_closing_waits_for_stores_and_tells_the_server(running: ServerProcess) -> None:
    paged = fused_hnd()
    with rig(running.port, paged) as worker:
        for number in range(10):
            worker.step(stores=(transfer([token + number for token in TOKENS], BLOCKS),))
        assert len(running.status()["workers"]) == 1
    assert running.status()["workers"] == []
    assert quiet(running)
    with rig(running.port, paged) as worker:
        worker.load(transfer([token + 9 for token in TOKENS], OTHERS))
        assert worker.counts["loads"] == 1


def test_closing_without_a_server_is_quick(running: ServerProcess) -> None:
    started = time.monotonic()
    with rig(running.port, fused_hnd(), timeout_seconds=60.0) as worker:
        running.pause()
        try:
            worker.step(stores=(transfer(TOKENS, BLOCKS),), loads=(transfer(TOKENS, OTHERS),))
            worker.side.close()
        finally:
            running.resume()
    assert time.monotonic() - started < 30
    assert until(lambda: running.answers_ping(1.0))


def test_through_restarts_a_load_is_right_or_it_fails(server: ServerProcess) -> None:
    """Transfers all the time, while the server is killed and started again: what was loaded is what was stored."""
    server.start()
    paged = fused_hnd()
    stop = threading.Event()

    def restart_now_and_then() -> None:
        while not stop.wait(0.7):
            server.kill()
            server.start()

    restarts = threading.Thread(target=restart_now_and_then)
    loaded, deadline = 0, time.monotonic() + 60.0
    with rig(server.port, paged, timeout_seconds=1.0, heartbeat_seconds=0.2) as worker:
        restarts.start()
        try:
            for number in itertools.count(1):
                if time.monotonic() > deadline or (loaded >= 30 and worker.counts.get("lost_servers:worker", 0) >= 4):
                    break
                prompt = [token + 1000 * (number % 7) for token in TOKENS]
                for pages in paged.pages.values():
                    pages[BLOCKS[0]] = number % 7
                    pages[OTHERS[0]] = -1
                worker.failed_blocks.clear()
                worker.store(transfer(prompt, BLOCKS, request=f"s{number}"))
                worker.load(transfer(prompt, OTHERS, request=f"l{number}"))
                if worker.failed_blocks:
                    assert worker.failed_blocks == set(OTHERS[0])
                    continue
                loaded += 1
                for pages in paged.pages.values():
                    assert (pages[OTHERS[0]] == number % 7).all()
        finally:
            stop.set()
            restarts.join()
    assert loaded >= 30
    assert worker.counts["lost_servers:worker"] >= 4
