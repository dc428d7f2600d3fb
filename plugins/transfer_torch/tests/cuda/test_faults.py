"""What happens when the driver, the GPU or a worker fails: no hang, no wrong byte, nothing kept."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from lmcache_transfer_torch.device import AbortedTransferError, DeviceError
from plugins.transfer_torch.tests.cuda.rig import Outcome, Rig, Worker, paged_group
from plugins.transfer_torch.tests.cuda.simulated_gpu import BROKEN, OUT_OF_MEMORY, Machine

RELEASES = {"free", "free_host", "unpin", "close_memory", "destroy_event", "unload"}
"""A failed call of these has not released anything, which has no remedy."""


def _life(machine: Machine, isolated_ipc: bool, pinnable: bool) -> list[tuple[bool, bool]]:
    """Two stores and a retrieve, from open to close.  For each of them whether it succeeded, and whether L1 or the pages
    are what they should be."""
    seen: list[tuple[bool, bool]] = []
    rig = Rig(machine, isolated_ipc, pinnable)
    try:
        worker = Worker(rig, [paged_group()])
        try:
            memory = rig.device.open_memory(worker.storages, worker.groups, 8)
        except DeviceError:
            return seen
        for turn in range(3):
            job, outcome = rig.job(worker, [[3, 1, 5, 7]]), Outcome()
            submit = memory.submit_scatter if turn == 2 else memory.submit_gather
            try:
                handle = submit(job, outcome)
            except AbortedTransferError:
                handle = b""
            except DeviceError:
                assert not outcome.arrivals
                continue
            arrived = outcome.result()
            assert handle or not arrived, "a failure that was not reported"
            seen.append((arrived, rig.stored(job, worker) == rig.expected(job, worker)))
        memory.close()
    finally:
        rig.close()
    return seen


@pytest.mark.parametrize(
    ("isolated_ipc", "pinnable", "name"),
    [
        (False, True, OUT_OF_MEMORY),
        (False, False, OUT_OF_MEMORY),
        (True, True, OUT_OF_MEMORY),
        (False, True, BROKEN),
        (True, False, BROKEN),
    ],
)
def test_an_error_of_any_call(isolated_ipc: bool, pinnable: bool, name: str) -> None:
    whole = Machine()
    assert _life(whole, isolated_ipc, pinnable) == [(True, True)] * 3
    for number in range(len(whole.calls)):
        machine = Machine()
        machine.faults.at_call, machine.faults.name = number, name
        for arrived, right in _life(machine, isolated_ipc, pinnable):
            assert right or not arrived, f"call {number} failed, and what was reported to have arrived had not"
        failed = machine.calls[number] if number < len(machine.calls) else "none"
        assert machine.violations == []
        if name == OUT_OF_MEMORY and failed not in RELEASES:
            assert not {kind: n for kind, n in machine.live.items() if n and not kind.endswith("made")}, failed


def test_a_gpu_that_breaks_while_it_copies_fails_everything_and_takes_no_more() -> None:
    with Rig() as rig:
        worker, other = Worker(rig, [paged_group()]), Worker(rig, [paged_group()], seed=1)
        memory, beside = worker.open(), other.open()
        handle, happen = worker.event(happened=False)
        waiting = Outcome()
        beside.submit_gather(rig.job(other, [[1, 2]]), _warm := Outcome())
        assert _warm.result()
        _pinned(rig)
        memory.submit_gather(rig.job(worker, [[3, 1]], ready=handle), waiting)
        rig.machine.faults.in_copy = True
        outcome = Outcome()
        with suppress(
            AbortedTransferError
        ):  # it breaks while what belongs to this copy is still being queued, or later
            beside.submit_gather(rig.job(other, [[3, 1]], offset=8192), outcome)
        assert outcome.result() is False
        assert waiting.result() is False
        happen()
        with pytest.raises(DeviceError, match="cannot be used"):
            memory.submit_gather(rig.job(worker, [[3, 1]], ready=handle), Outcome())
        with pytest.raises(DeviceError, match="cannot be used"):
            worker.open()
        status = rig.device.status()["gpus"]
        assert BROKEN in str(status)
        memory.close()
        beside.close()


def test_an_event_of_no_process_fails_its_own_transfer_only() -> None:
    with Rig() as rig:
        worker = Worker(rig, [paged_group()])
        memory = worker.open()
        for ready in (b"\xff" * 64, b"stub_ipc_handle", b"x" * 81):
            with pytest.raises(DeviceError):
                memory.submit_gather(rig.job(worker, [[3, 1]], ready=ready), Outcome())
        outcome = Outcome()
        assert memory.submit_gather(rig.job(worker, [[3, 1]]), outcome)
        assert outcome.result()
        memory.close()


def test_block_ids_are_checked_before_anything_runs() -> None:
    with Rig() as rig:
        worker = Worker(rig, [paged_group()])
        memory = worker.open()
        for ids in ([3, 12], [3, -2], [2**40, 1]):
            with pytest.raises(DeviceError, match="do not fit"):
                memory.submit_scatter(rig.job(worker, [ids]), Outcome())
        assert "launch" not in rig.machine.calls
        memory.close()


def test_a_worker_that_dies_before_its_event_abandons_its_transfers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmcache_transfer_torch.cuda.completions.RESCUE_SECONDS", 0.1)
    with Rig(isolated_ipc=True) as rig:
        worker, other = Worker(rig, [paged_group()]), Worker(rig, [paged_group()], seed=1)
        memory, beside = worker.open(), other.open()
        beside.submit_gather(rig.job(other, [[3, 1]]), Outcome())
        _pinned(rig)
        handle, _ = worker.event(happened=False)
        outcome, fine = Outcome(), Outcome()
        assert memory.submit_gather(rig.job(worker, [[3, 1]], ready=handle), outcome)
        memory.close()
        assert beside.submit_gather(rig.job(other, [[3, 1]], offset=8192), fine)
        assert fine.result()
        assert outcome.result() is False
        beside.close()


def test_a_worker_that_leaves_in_order_has_its_last_store() -> None:
    with Rig() as rig:
        worker = Worker(rig, [paged_group()])
        memory = worker.open()
        memory.submit_gather(rig.job(worker, [[3, 1]]), Outcome())
        _pinned(rig)
        handle, happen = worker.event(happened=False)
        job, outcome = rig.job(worker, [[3, 1]], ready=handle), Outcome()
        assert memory.submit_gather(job, outcome)
        memory.close()
        assert rig.machine.live["import"] == 1, "what a transfer uses stays mapped"
        happen()
        assert outcome.result()
        assert rig.stored(job, worker) == rig.expected(job, worker)
        _until(lambda: not rig.machine.live["import"])


@pytest.mark.parametrize("isolated_ipc", [False, True], ids=["events", "semaphores"])
def test_closing_while_transfers_run(isolated_ipc: bool) -> None:
    rig = Rig(isolated_ipc=isolated_ipc)
    worker = Worker(rig, [paged_group()])
    memory = worker.open()
    memory.submit_gather(rig.job(worker, [[3, 1]]), Outcome())
    _pinned(rig)
    rig.machine.faults.copy_seconds = 0.02
    outcomes = [Outcome() for _ in range(8)]
    for number, outcome in enumerate(outcomes):
        memory.submit_gather(rig.job(worker, [[3, 1]], offset=4096 * number), outcome)
    rig.close()
    assert all(len(outcome.arrivals) == 1 for outcome in outcomes)
    left = {kind: n for kind, n in rig.machine.live.items() if n and not kind.endswith("made")}
    assert left == {}
    with pytest.raises(DeviceError, match="left"):
        memory.submit_gather(rig.job(worker, [[3, 1]]), Outcome())
    memory.close()


def test_a_worker_that_holds_its_event_back_does_not_keep_the_server_from_stopping() -> None:
    rig = Rig()
    worker = Worker(rig, [paged_group()])
    memory = worker.open()
    memory.submit_gather(rig.job(worker, [[3, 1]]), Outcome())
    _pinned(rig)
    handle, happen = worker.event(happened=False)
    outcome = Outcome()
    memory.submit_gather(rig.job(worker, [[3, 1]], ready=handle), outcome)
    started = threading.Thread(target=rig.device.close, args=(0.3,))
    started.start()
    started.join(10)
    assert not started.is_alive()
    assert rig.machine.live["memory"], "what a copy may still touch is not released"
    assert not outcome.arrivals
    happen()
    assert outcome.result() is False


def test_a_bounced_transfer_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmcache_transfer_torch.cuda.host_side.Waiter.__init__.__defaults__", (0.1,))
    with Rig(pinnable=False) as rig:
        worker = Worker(rig, [paged_group()])
        memory = worker.open()
        handle, happen = worker.event(happened=False)
        outcome = Outcome()
        with pytest.raises(AbortedTransferError):
            memory.submit_gather(rig.job(worker, [[3, 1]], ready=handle), outcome)
        assert not outcome.arrivals, "the GPU may still touch it"
        happen()
        assert outcome.result() is False
        again = Outcome()
        job = rig.job(worker, [[3, 1]])
        assert memory.submit_gather(job, again)
        assert again.result()
        assert rig.stored(job, worker) == rig.expected(job, worker)
        memory.close()


def test_a_thousand_workers_leave_nothing_behind() -> None:
    with Rig() as rig:
        worker = Worker(rig, [paged_group()])
        threads = threading.active_count()
        memory = worker.open()
        memory.submit_gather(rig.job(worker, [[3, 1]]), Outcome())
        _pinned(rig)
        memory.close()
        _until(lambda: not rig.machine.live["import"])
        _until(lambda: len(rig.device._gpus[_uuid(worker)]._users) == 0)
        before = dict(rig.machine.live)
        for turn in range(1000):
            memory = worker.open()
            if turn % 10 == 0:
                memory.submit_gather(rig.job(worker, [[3, 1]]), outcome := Outcome())
                assert outcome.result()
            memory.close()
            # The next one takes what this one had, if it has released it by then; so that is waited for.
            _until(lambda: not rig.machine.live["import"])
            _until(lambda: len(rig.device._gpus[_uuid(worker)]._users) == 0)
        after = dict(rig.machine.live)
        for kind in ("memory", "stream", "import", "module"):
            assert after[kind] == before[kind], kind
        assert after["any event"] <= before["any event"] + 100
        _until(lambda: threading.active_count() <= threads + 8)


def _uuid(worker: Worker) -> str:
    return worker.storages[0].metadata.device_uuid


def _until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.0005)


def _pinned(rig: Rig) -> None:
    arena = rig.device._arena
    assert arena is not None
    _until(lambda: arena.covers(rig.l1, 64 << 10))
