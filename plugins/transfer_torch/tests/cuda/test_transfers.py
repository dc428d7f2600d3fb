"""Stores and retrieves through the whole pipeline, on a simulated GPU."""

from __future__ import annotations

import ctypes
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmcache_transfer_torch.cuda.semaphore_handle import SemaphoreHandle
from lmcache_transfer_torch.device import DeviceError
from plugins.transfer_torch.tests.cuda.rig import CHUNK_TOKENS, Outcome, Rig, Worker, paged_group

both_ways = pytest.mark.parametrize("isolated_ipc", [False, True], ids=["events", "semaphores"])
both_sides = pytest.mark.parametrize("pinnable", [True, False], ids=["pinned", "bounced"])


@both_ways
@both_sides
def test_what_is_stored_comes_back(isolated_ipc: bool, pinnable: bool) -> None:
    with Rig(isolated_ipc=isolated_ipc, pinnable=pinnable) as rig:
        worker = Worker(rig, [paged_group(), paged_group(layers=3, kv_axis=2, hnd=True, padding=48)])
        memory = worker.open()
        job = rig.job(worker, [[3, 1, 0, 11], [5, 4, 2, 7]])
        stored = Outcome()
        assert memory.submit_gather(job, stored)
        assert stored.result()
        assert rig.stored(job, worker) == rig.expected(job, worker)

        before = worker.pages()
        worker.fill(seed=99)
        loaded = Outcome()
        again = rig.job(worker, [[3, 1, 0, 11], [5, 4, 2, 7]])
        assert memory.submit_scatter(again, loaded)
        assert loaded.result()
        assert rig.expected(again, worker) == rig.stored(again, worker)
        assert worker.pages() != before, "blocks that were not named stay as they are"
        memory.close()


@both_sides
def test_a_null_block_is_zeros_in_l1_and_is_left_alone_in_the_cache(pinnable: bool) -> None:
    with Rig(pinnable=pinnable) as rig:
        worker = Worker(rig, [paged_group()])
        memory = worker.open()
        rig.scrub()
        job = rig.job(worker, [[3, -1]])
        outcome = Outcome()
        memory.submit_gather(job, outcome)
        assert outcome.result()
        (region,) = rig.stored(job, worker)
        plane, page = len(region) // 2, len(region) // 4
        assert not any(region[page:plane])
        assert any(region[:page])

        before = worker.pages()
        outcome = Outcome()
        memory.submit_scatter(rig.job(worker, [[-1, -1]]), outcome)
        assert outcome.result()
        assert worker.pages() == before
        memory.close()


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_any_geometry_gives_what_the_cpu_gives(data: st.DataObject) -> None:
    draw = data.draw
    groups = [
        paged_group(
            layers=draw(st.integers(1, 4)),
            kv_axis=draw(st.integers(1, 2)),
            heads=draw(st.integers(1, 3)),
            head_bytes=draw(st.sampled_from([1, 2, 6, 8, 12, 32])),
            slots=draw(st.sampled_from([1, 2, 4, 8])),
            hnd=draw(st.booleans()),
            padding=draw(st.sampled_from([0, 1, 4, 24])),
        )
        for _ in range(draw(st.integers(1, 3)))
    ]
    chunks = draw(st.integers(1, 3))
    with Rig(isolated_ipc=draw(st.booleans()), pinnable=draw(st.booleans())) as rig:
        worker = Worker(rig, groups, seed=draw(st.integers(0, 9)))
        memory = worker.open()
        ids = [
            draw(
                st.lists(
                    st.integers(-1, group.blocks - 1),
                    min_size=chunks * group.blocks_per_chunk(CHUNK_TOKENS),
                    max_size=chunks * group.blocks_per_chunk(CHUNK_TOKENS),
                )
            )
            for group in groups
        ]
        rig.scrub()
        job, outcome = rig.job(worker, ids, offset=4096), Outcome()
        assert memory.submit_gather(job, outcome)
        assert outcome.result()
        assert rig.stored(job, worker) == rig.expected(job, worker)
        memory.close()


def test_regions_larger_than_a_staging_buffer_go_in_runs_of_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmcache_transfer_torch.cuda.gpu.STAGING_BYTES", 4096)
    with Rig() as rig:
        worker = Worker(
            rig, [paged_group(layers=9, head_bytes=128)]
        )  # 2 KiB for each layer of a chunk, so two at a time
        memory = worker.open()
        job, outcome = rig.job(worker, [[1, 2, 3, 4]]), Outcome()
        memory.submit_gather(job, outcome)
        assert outcome.result()
        assert rig.stored(job, worker) == rig.expected(job, worker)
        assert rig.machine.calls.count("launch") == 2 * 5
        memory.close()


@both_ways
@both_sides
def test_nothing_is_read_before_the_workers_event(isolated_ipc: bool, pinnable: bool) -> None:
    with Rig(isolated_ipc=isolated_ipc, pinnable=pinnable) as rig:
        worker = Worker(rig, [paged_group()])
        memory = worker.open()
        handle, happen = worker.event(happened=False)
        job, outcome = rig.job(worker, [[3, 1]], ready=handle), Outcome()
        submitting = threading.Thread(target=memory.submit_gather, args=(job, outcome))
        submitting.start()
        assert not outcome.came.wait(0.05)
        worker.fill(seed=5)  # the forward step that was still running
        expected = rig.expected(job, worker)
        happen()
        submitting.join(10)
        assert outcome.result()
        assert rig.stored(job, worker) == expected
        memory.close()


@both_ways
def test_the_event_for_the_worker_does_not_happen_before_the_bytes_are_there(isolated_ipc: bool) -> None:
    with Rig(isolated_ipc=isolated_ipc) as rig:
        worker = Worker(rig, [paged_group(layers=4)])
        memory = worker.open()
        _pinned(rig)
        memory.submit_gather(rig.job(worker, [[3, 1]], offset=64), before := Outcome())
        assert before.result()
        rig.machine.faults.copy_seconds = 0.03
        job, outcome = rig.job(worker, [[3, 1, 5, 7]], offset=64), Outcome()
        handle = memory.submit_gather(job, outcome)
        assert not _happened(rig, handle)
        assert rig.machine.until(lambda: _happened(rig, handle))
        assert rig.stored(job, worker) == rig.expected(job, worker)
        assert outcome.result()
        memory.close()


def test_transfers_of_one_worker_and_of_several_do_not_disturb_each_other() -> None:
    with Rig(l1_bytes=8 << 20) as rig:
        workers = [Worker(rig, [paged_group()], seed=number) for number in range(4)]
        memories = [worker.open() for worker in workers]
        jobs = []
        for turn in range(8):
            for number, (worker, memory) in enumerate(zip(workers, memories, strict=True)):
                job = rig.job(worker, [[turn, 11 - turn]], offset=(turn * 4 + number) * 4096)
                jobs.append((worker, job, Outcome()))
                assert memory.submit_gather(job, jobs[-1][2])
        for worker, job, outcome in jobs:
            assert outcome.result()
            assert rig.stored(job, worker) == rig.expected(job, worker)
        for memory in memories:
            memory.close()


def test_copies_do_not_cross_the_seams_of_what_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmcache_transfer_torch.cuda.arena_pins.ArenaPins.__init__.__defaults__", (4096,))
    with Rig() as rig:
        worker = Worker(rig, [paged_group(layers=6, head_bytes=64)])  # an object of 6 KiB
        memory = worker.open()
        _pinned(rig)
        job, outcome = rig.job(worker, [[3, 1, 5, 7]], offset=1000), Outcome()
        memory.submit_gather(job, outcome)
        assert outcome.result()
        assert rig.stored(job, worker) == rig.expected(job, worker)
        memory.close()


def _happened(rig: Rig, handle: bytes) -> bool:
    if not rig.isolated_ipc:
        return rig.machine.has_happened(handle)
    decoded = SemaphoreHandle.decode(handle)
    address = rig.machine.shared_memory[decoded.memory].address + decoded.offset
    return ctypes.c_uint64.from_address(address).value >= decoded.sequence


def _pinned(rig: Rig) -> None:
    """All of L1 that the tests use is pinned."""
    arena = rig.device._arena
    assert arena is not None
    arena.covers(rig.l1, 64 << 10)
    end = time.monotonic() + 10
    while not arena.covers(rig.l1, 64 << 10):
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_worker_that_has_left_is_refused() -> None:
    with Rig() as rig:
        worker = Worker(rig, [paged_group()])
        memory = worker.open()
        memory.close()
        with pytest.raises(DeviceError, match="left"):
            memory.submit_gather(rig.job(worker, [[3, 1]]), Outcome())
