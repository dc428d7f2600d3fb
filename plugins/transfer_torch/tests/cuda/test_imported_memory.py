from __future__ import annotations

import threading

import pytest

from lmcache_transfer_torch.cuda.imported_memory import Import, ImportedMemory
from lmcache_transfer_torch.device import DeviceError
from plugins.transfer_torch.tests.cuda.simulated_gpu import OUT_OF_MEMORY, Machine


def test_one_handle_is_mapped_once_for_all_who_use_it() -> None:
    machine = Machine()
    handle = machine.share(machine.allocate(4096), 4096)
    memory = ImportedMemory(machine.open(0))
    first, second = memory.open(handle), memory.open(handle)
    assert first is second
    memory.close(first)
    assert machine.live["import"] == memory.count == 1
    memory.close(second)
    assert machine.live["import"] == memory.count == 0


def test_threads_that_open_and_close_one_handle() -> None:
    machine = Machine()
    handle = machine.share(machine.allocate(4096), 4096)
    memory = ImportedMemory(machine.open(0))

    def work() -> None:
        for _ in range(300):
            memory.close(memory.open(handle))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert machine.violations == []
    assert machine.live["import"] == 0


def test_what_cannot_be_measured_is_not_kept() -> None:
    machine = Machine()
    handle = machine.share(machine.allocate(4096), 4096)
    memory = ImportedMemory(machine.open(0))
    machine.faults.at_call, machine.faults.name = 1, OUT_OF_MEMORY
    with pytest.raises(DeviceError, match="allocation"):
        memory.open(handle)
    assert machine.live["import"] == 0
    assert memory.open(handle).length == 4096


@pytest.mark.parametrize(("offset", "nbytes"), [(0, 4097), (4096, 1), (1, 4096), (-1, 8), (2**62, 2**62)])
def test_bytes_that_the_allocation_has_not(offset: int, nbytes: int) -> None:
    with pytest.raises(DeviceError, match="4096"):
        Import(b"", 1 << 20, 4096).place(offset, nbytes)


def test_bytes_that_it_has() -> None:
    assert Import(b"", 1 << 20, 4096).place(96, 4000) == (1 << 20) + 96
