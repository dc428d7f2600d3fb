"""Two things at once, and what was still in the streams when a transfer failed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from lmcache_transfer_torch.cuda.driver import DriverError
from lmcache_transfer_torch.cuda.memory import CudaMemory
from lmcache_transfer_torch.cuda.ordering import SemaphoreOrdering
from lmcache_transfer_torch.cuda.semaphore_handle import SemaphoreHandle
from lmcache_transfer_torch.device import AbortedTransferError, DeviceError
from plugins.transfer_torch.tests.cuda.rig import Outcome, Rig, Worker, paged_group
from plugins.transfer_torch.tests.cuda.simulated_gpu import OUT_OF_MEMORY

both_sides = pytest.mark.parametrize("pinnable", [True, False], ids=["pinned", "bounced"])


def _until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def _pinned(rig: Rig) -> None:
    arena = rig.device._arena
    assert arena is not None
    _until(lambda: arena.covers(rig.l1, 64 << 10))


def _fail_call(rig: Rig, name: str, number: int) -> None:
    """The call of this name that comes as the `number`-th from now on fails."""
    seen = 0

    def before(called: str) -> None:
        nonlocal seen
        if called == name and threading.current_thread() is caller:
            seen += 1
            if seen == number:
                raise DriverError(name, OUT_OF_MEMORY, "injected")

    caller = threading.current_thread()
    rig.machine.before = before


def _aborted_retrieve(
    rig: Rig, worker: Worker, memory: CudaMemory, outcome: Outcome
) -> tuple[AbortedTransferError, Callable[[], None]]:
    """One whose first piece is in the streams, behind the worker's event, when the second cannot be started."""
    handle, happen = worker.event(happened=False)
    _fail_call(rig, "launch", 2)
    with pytest.raises(AbortedTransferError) as caught:
        memory.submit_scatter(rig.job(worker, [[3, 1, 5, 7]], ready=handle), outcome)
    rig.machine.before = None
    return caught.value, happen


@both_sides
def test_a_failed_retrieve_names_the_event_behind_what_it_still_writes(pinnable: bool) -> None:
    with Rig(pinnable=pinnable) as rig:
        worker = Worker(rig, [paged_group(layers=4)])
        memory = worker.open()
        if pinnable:
            memory.submit_gather(rig.job(worker, [[3, 1]]), warm := Outcome())
            assert warm.result()
            _pinned(rig)
        rig.scrub()
        before, outcome = worker.pages(), Outcome()
        aborted, happen = _aborted_retrieve(rig, worker, memory, outcome)
        assert worker.pages() == before
        assert aborted.event
        assert not rig.machine.has_happened(aborted.event)
        happen()
        assert rig.machine.until(lambda: rig.machine.has_happened(aborted.event))
        after = worker.pages()
        assert after != before, "what was in the streams was written"
        assert outcome.result() is False
        assert worker.pages() == after, "nothing is written behind the event"
        memory.close()


@both_sides
def test_nothing_is_begun_behind_a_failed_transfer_until_it_is_over(pinnable: bool) -> None:
    """Its kernels are still to read the buffers that the next one would fill."""
    with Rig(pinnable=pinnable) as rig:
        worker = Worker(rig, [paged_group(layers=4)])
        memory = worker.open()
        if pinnable:
            memory.submit_gather(rig.job(worker, [[3, 1]]), warm := Outcome())
            assert warm.result()
            _pinned(rig)
        rig.scrub()
        outcome = Outcome()
        _, happen = _aborted_retrieve(rig, worker, memory, outcome)
        calls = len(rig.machine.calls)
        with pytest.raises(DeviceError, match="failed before"):
            memory.submit_scatter(rig.job(worker, [[0, 2]]), Outcome())
        assert not {"launch", "copy_to_device", "wait_event"} & set(rig.machine.calls[calls:])
        happen()
        assert outcome.result() is False
        assert memory.submit_scatter(job := rig.job(worker, [[0, 2]]), again := Outcome())
        assert again.result()
        assert rig.stored(job, worker) == rig.expected(job, worker)
        memory.close()


def test_a_transfer_that_ends_before_it_is_announced_ends_once() -> None:
    with Rig() as rig:
        worker, other = Worker(rig, [paged_group()]), Worker(rig, [paged_group()], seed=1)
        memory, beside = worker.open(), other.open()
        memory.submit_gather(rig.job(worker, [[3, 1]]), warm := Outcome())
        assert warm.result()
        _pinned(rig)
        handle, happen = other.event(happened=False)
        beside.submit_gather(rig.job(other, [[3, 1]], offset=8192, ready=handle), waiting := Outcome())
        outcome, caller = Outcome(), threading.current_thread()

        def before(name: str) -> None:
            if name == "post" and threading.current_thread() is caller:
                assert outcome.came.wait(10), "the other one's watch ends this one, too"
                raise DriverError("post", OUT_OF_MEMORY, "injected")

        rig.machine.before = before
        assert memory.submit_gather(rig.job(worker, [[3, 1]]), outcome)
        rig.machine.before = None
        memory.close()
        _until(lambda: rig.machine.live["import"] == 1)
        assert outcome.arrivals == [True]
        happen()
        assert waiting.result()
        beside.close()


def test_a_worker_that_leaves_while_its_transfer_is_submitted_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmcache_transfer_torch.cuda.completions.RESCUE_SECONDS", 0.05)
    with Rig(isolated_ipc=True) as rig:
        worker = Worker(rig, [paged_group()])
        memory = worker.open()
        memory.submit_gather(rig.job(worker, [[3, 1]]), warm := Outcome())
        assert warm.result()
        _pinned(rig)
        handle, _ = worker.event(happened=False)
        rig.machine.before = lambda name: memory.close() if name == "wait_value" else None
        memory.submit_gather(rig.job(worker, [[3, 1]], ready=handle), outcome := Outcome())
        rig.machine.before = None
        assert outcome.result() is False
        _until(lambda: not rig.machine.live["import"])


def test_a_worker_that_counts_backwards_is_abandoned_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number that frees its second transfer must not hide the one that its first waits for."""
    monkeypatch.setattr("lmcache_transfer_torch.cuda.completions.RESCUE_SECONDS", 0.05)
    with Rig(isolated_ipc=True) as rig:
        worker = Worker(rig, [paged_group()])
        memory = worker.open()
        memory.submit_gather(rig.job(worker, [[3, 1]]), warm := Outcome())
        assert warm.result()
        _pinned(rig)
        outcomes = []
        for sequence in (900, 7, 800):
            ready = SemaphoreHandle(worker.semaphore_handle, 8, sequence).encode()
            memory.submit_gather(rig.job(worker, [[3, 1]], ready=ready), outcome := Outcome())
            outcomes.append(outcome)
        memory.close()
        assert [outcome.result() for outcome in outcomes] == [False] * 3


def test_two_threads_that_meet_a_new_buffer_map_it_once() -> None:
    with Rig(isolated_ipc=True) as rig:
        worker = Worker(rig, [paged_group()])
        memory = worker.open()
        ordering = rig.device._gpus[worker.storages[0].metadata.device_uuid].parts.ordering
        assert isinstance(ordering, SemaphoreOrdering)
        peer, (handle, _) = ordering.peer(), worker.event()
        second = threading.Thread(target=peer.ready, args=(handle,))

        def before(name: str) -> None:
            if name == "open_memory" and second.ident is None:
                second.start()
                second.join(0.1)  # it waits for the mapping, and has seen that there is none

        rig.machine.before = before
        peer.ready(handle)
        second.join(10)
        rig.machine.before = None
        peer.close()
        assert rig.machine.live["import"] == 1, "the worker's pages"
        memory.close()


@both_sides
def test_closing_waits_for_one_that_is_being_submitted(pinnable: bool) -> None:
    rig = Rig(pinnable=pinnable)
    worker = Worker(rig, [paged_group()])
    memory = worker.open()
    outcome, caller = Outcome(), threading.current_thread()
    closing = threading.Thread(target=rig.close)

    def before(name: str) -> None:
        if name == "wait_event" and threading.current_thread() is caller and closing.ident is None:
            closing.start()
            closing.join(0.2)

    rig.machine.before = before
    memory.submit_gather(rig.job(worker, [[3, 1]]), outcome)
    closing.join(20)
    assert not closing.is_alive()
    assert len(outcome.arrivals) == 1
    assert rig.machine.violations == []
    assert not {kind: n for kind, n in rig.machine.live.items() if n and not kind.endswith("made")}


def test_a_worker_that_registers_while_the_server_stops_leaves_nothing() -> None:
    rig = Rig()
    worker, first = Worker(rig, [paged_group()]), Worker(rig, [paged_group()], seed=1)
    first.open()
    caller, closing = threading.current_thread(), threading.Thread(target=rig.close)

    def before(name: str) -> None:
        if name == "open_memory" and threading.current_thread() is caller and closing.ident is None:
            closing.start()
            closing.join(0.2)

    rig.machine.before = before
    memory = worker.open()
    closing.join(20)
    assert not closing.is_alive()
    assert not {kind: n for kind, n in rig.machine.live.items() if n and not kind.endswith("made")}
    with pytest.raises(DeviceError, match="left"):
        memory.submit_gather(rig.job(worker, [[3, 1]]), Outcome())
