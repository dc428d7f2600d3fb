"""The binding on the real driver."""

from __future__ import annotations

import ctypes
import mmap
import time
from collections.abc import Iterator

import pytest

from lmcache_transfer_torch.cuda.driver import DriverError
from lmcache_transfer_torch.cuda.host_side import Waiter
from lmcache_transfer_torch.cuda.libcuda import CudaDriver, CudaDrivers

SIZE = 1 << 20


@pytest.fixture
def driver(drivers: CudaDrivers) -> Iterator[CudaDriver]:
    opened = drivers.open(0)
    yield opened
    opened.close()


def test_gpus_have_names_and_uuids_as_torch_has_them(drivers: CudaDrivers) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch was built without CUDA")
    for gpu in drivers.gpus:
        properties = torch.cuda.get_device_properties(gpu.ordinal)
        assert gpu.uuid == str(properties.uuid)
        assert gpu.name == properties.name
        assert gpu.capability == properties.major * 10 + properties.minor


def test_bytes_go_there_and_back(driver: CudaDriver) -> None:
    stream, device, host = driver.create_stream(), driver.allocate(SIZE), driver.allocate_host(2 * SIZE)
    content = bytes(range(256)) * (SIZE // 256)
    ctypes.memmove(host, content, SIZE)
    driver.copy_to_device(device, host, SIZE, stream)
    driver.copy_to_host(host + SIZE, device, SIZE, stream)
    driver.synchronize()
    assert ctypes.string_at(host + SIZE, SIZE) == content
    assert driver.allocation(device + 5).length >= SIZE
    driver.free(device)
    driver.free_host(host)
    driver.destroy_stream(stream)


def test_a_stream_waits_for_a_value_and_posts_a_semaphore(driver: CudaDriver) -> None:
    waiting, writing, cell = driver.create_stream(), driver.create_stream(), driver.allocate(4096)
    driver.clear(cell, 4096)
    event, waiter = driver.create_event(False), Waiter(driver, 10)
    driver.wait_value(waiting, cell + 8, 3)
    driver.record(event, waiting)
    waiter.mark(waiting)
    time.sleep(0.1)
    assert not driver.is_complete(event)
    driver.write_value(writing, cell + 8, 4)
    waiter.wait()
    assert driver.is_complete(event)
    driver.destroy_event(event)
    driver.free(cell)


def test_memory_of_this_process_is_pinned_and_unpinned(driver: CudaDriver) -> None:
    memory = mmap.mmap(-1, SIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    driver.pin(address, SIZE)
    with pytest.raises(DriverError, match="ALREADY_REGISTERED"):
        driver.pin(address, SIZE)
    driver.unpin(address)


def test_a_handle_of_nothing_is_refused(driver: CudaDriver) -> None:
    for call in (driver.open_memory, driver.open_event):
        with pytest.raises(DriverError) as caught:
            call(bytes(64))
        assert not caught.value.lasting
