"""Transfers of a worker in another process, on a real GPU."""

from __future__ import annotations

import ctypes
import mmap
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from benchmarks.device_worker import DeviceWorker
from lmcache_core import MemoryRegion
from lmcache_kv_layout import EngineKVFormat, PageCopier, PagedGroup
from lmcache_transfer_torch.cuda.device import CudaDevice
from lmcache_transfer_torch.cuda.libcuda import CudaDrivers
from lmcache_transfer_torch.cuda.page_images import PageCompiler
from lmcache_transfer_torch.cuda.semaphore_handle import SemaphoreHandle
from lmcache_transfer_torch.descriptors import CudaHandle, CudaRawStorage, CudaStorage, Storage, TensorMetadata
from lmcache_transfer_torch.device import DeviceError, TransferJob, TransferPart

CHUNK_TOKENS = 32
BLOCKS, SLOTS, HEADS, HEAD_BYTES, LAYERS = 24, 16, 4, 64, 6
PAGE = SLOTS * HEADS * HEAD_BYTES
NBYTES = LAYERS * BLOCKS * PAGE
L1_BYTES = 4 << 20
SEED = 11


def group(head_major: bool = True) -> PagedGroup:
    slot, head = (HEAD_BYTES, SLOTS * HEAD_BYTES) if head_major else (HEADS * HEAD_BYTES, HEAD_BYTES)
    bases = tuple((0, layer * BLOCKS * PAGE) for layer in range(LAYERS))
    kind = EngineKVFormat.NL_X_NB_NH_BS_CS
    return PagedGroup(
        kind, LAYERS, 1, HEADS, HEAD_BYTES, 1, "uint8", BLOCKS, SLOTS, SLOTS, PAGE, slot, head, bases
    )  # fmt: skip


def pattern(seed: int) -> bytes:
    numbers = ((index * 2654435761 + seed) & 0xFFFFFFFF for index in range(NBYTES // 4))
    return b"".join(number.to_bytes(4, "little") for number in numbers)


@dataclass(eq=False)
class Outcome:
    arrivals: list[bool] = field(default_factory=list)
    came: threading.Event = field(default_factory=threading.Event)

    def __call__(self, arrived: bool) -> None:
        self.arrivals.append(arrived)
        self.came.set()

    def result(self) -> bool:
        assert self.came.wait(30)
        return self.arrivals == [True]


class StorageHarness:
    """L1, a worker's process and the device between them."""

    def __init__(self, drivers: CudaDrivers, kind: str, isolated_ipc: bool, known_l1: bool = True) -> None:
        self.isolated_ipc = isolated_ipc
        self._l1 = mmap.mmap(-1, L1_BYTES)
        self.l1 = ctypes.addressof(ctypes.c_char.from_buffer(self._l1))
        region = MemoryRegion(self.l1, L1_BYTES, memoryview(self._l1)) if known_l1 else None
        self.device = CudaDevice(drivers, PageCompiler(), region, isolated_ipc)
        self.worker = DeviceWorker(kind, NBYTES)

    def storage(self, as_torch: bool) -> Storage:
        described = self.worker.described
        metadata = TensorMetadata("uint8", (NBYTES,), (1,), 0, described["uuid"])
        if not as_torch:
            return CudaRawStorage(metadata, 1, bytes.fromhex(described["raw"]), described["offset"], NBYTES)
        values: list[Any] = [bytes.fromhex(v) if isinstance(v, str) else v for v in described["torch"]]
        return CudaStorage(metadata, 1, CudaHandle(*values))

    def ready(self) -> bytes:
        return bytes.fromhex(self.worker.ask("semaphore" if self.isolated_ipc else "event"))

    def job(self, blocks: list[int], ready: bytes | None = None) -> TransferJob:
        size = group().object_layout(CHUNK_TOKENS).payload_bytes
        addresses = tuple(self.l1 + number * size for number in range(len(blocks) // 2))
        return TransferJob((TransferPart(0, tuple(blocks), addresses),), self.ready() if ready is None else ready)

    def stored(self, count: int) -> bytes:
        return ctypes.string_at(self.l1, count * group().object_layout(CHUNK_TOKENS).payload_bytes)

    def close(self) -> None:
        self.device.close()
        self.worker.kill()


def gathered(layout: PagedGroup, content: bytes, blocks: list[int]) -> bytes:
    size = layout.object_layout(CHUNK_TOKENS).payload_bytes
    pages, objects = ctypes.create_string_buffer(content, NBYTES), ctypes.create_string_buffer(len(blocks) // 2 * size)
    bases = [ctypes.addressof(pages) + offset for _, offset in layout.bases]
    addresses = [ctypes.addressof(objects) + number * size for number in range(len(blocks) // 2)]
    PageCopier(native="off").gather(layout, bases, blocks, addresses)
    return objects.raw


@pytest.fixture(params=["events", "semaphores"])
def harness(request: pytest.FixtureRequest, drivers: CudaDrivers) -> Iterator[StorageHarness]:
    made = StorageHarness(drivers, "plain", request.param == "semaphores")
    yield made
    made.close()


@pytest.mark.parametrize("head_major", [True, False], ids=["head-major", "token-major"])
def test_what_is_stored_comes_back(harness: StorageHarness, head_major: bool) -> None:
    layout, blocks = group(head_major), [5, 2, 0, 23, 7, 1]
    memory = harness.device.open_memory([harness.storage(False)], [layout], CHUNK_TOKENS)
    for _ in range(2):  # through a buffer, and then, as far as it is quick, pinned
        harness.worker.ask("fill", seed=SEED)
        outcome = Outcome()
        assert memory.submit_gather(harness.job(blocks), outcome)
        assert outcome.result()
        assert harness.stored(3) == gathered(layout, pattern(SEED), blocks)

        harness.worker.ask("fill", seed=SEED + 1)
        outcome = Outcome()
        assert memory.submit_scatter(harness.job(blocks), outcome)
        assert outcome.result()
        after = bytes.fromhex(harness.worker.ask("read"))
        assert gathered(layout, after, blocks) == harness.stored(3)
        others = [4, 6, 8, 9]
        assert gathered(layout, after, others) == gathered(layout, pattern(SEED + 1), others)
        time.sleep(0.5)
    memory.close()


def test_null_blocks(harness: StorageHarness) -> None:
    memory = harness.device.open_memory([harness.storage(False)], [group()], CHUNK_TOKENS)
    harness.worker.ask("fill", seed=SEED)
    outcome = Outcome()
    memory.submit_gather(harness.job([5, -1]), outcome)
    assert outcome.result()
    assert harness.stored(1) == gathered(group(), pattern(SEED), [5, -1])
    outcome = Outcome()
    memory.submit_scatter(harness.job([-1, -1]), outcome)
    assert outcome.result()
    assert bytes.fromhex(harness.worker.ask("read")) == pattern(SEED)
    memory.close()


def test_the_worker_sees_the_event_of_a_transfer(drivers: CudaDrivers) -> None:
    made = StorageHarness(drivers, "plain", isolated_ipc=False)
    try:
        memory = made.device.open_memory([made.storage(False)], [group()], CHUNK_TOKENS)
        outcome = Outcome()
        handle = memory.submit_gather(made.job([1, 2]), outcome)
        made.worker.ask("wait_event", handle=handle.hex())
        assert outcome.result()
        memory.close()
    finally:
        made.close()


def test_memory_that_torch_shares(drivers: CudaDrivers) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch was built without CUDA")
    made = StorageHarness(drivers, "torch", isolated_ipc=False)
    try:
        for as_torch in (True, False):
            memory = made.device.open_memory([made.storage(as_torch)], [group()], CHUNK_TOKENS)
            made.worker.ask("fill", seed=SEED)
            outcome = Outcome()
            memory.submit_gather(made.job([5, 2]), outcome)
            assert outcome.result()
            assert made.stored(1) == gathered(group(), pattern(SEED), [5, 2])
            memory.close()
    finally:
        made.close()


def test_a_worker_that_dies_harms_no_other(drivers: CudaDrivers) -> None:
    made = StorageHarness(drivers, "plain", isolated_ipc=True)
    try:
        memory = made.device.open_memory([made.storage(False)], [group()], CHUNK_TOKENS)
        handle = SemaphoreHandle.decode(made.ready())
        never = handle._replace(sequence=1 << 40).encode()
        warm = Outcome()
        memory.submit_gather(made.job([1, 2]), warm)
        assert warm.result()
        time.sleep(1)  # L1 is pinned
        outcome = Outcome()
        memory.submit_gather(made.job([1, 2], never), outcome)
        made.worker.kill()
        memory.close()
        assert not outcome.result()
        made.worker = DeviceWorker("plain", NBYTES)
        again = made.device.open_memory([made.storage(False)], [group()], CHUNK_TOKENS)
        made.worker.ask("fill", seed=SEED)
        outcome = Outcome()
        again.submit_gather(made.job([5, 2]), outcome)
        assert outcome.result()
        assert made.stored(1) == gathered(group(), pattern(SEED), [5, 2])
        again.close()
    finally:
        made.close()


def test_a_descriptor_larger_than_the_allocation_is_refused(harness: StorageHarness) -> None:
    storage = harness.storage(False)
    assert isinstance(storage, CudaRawStorage)
    large = CudaRawStorage(storage.metadata, 1, storage.ipc_handle, storage.alloc_offset, 1 << 40)
    with pytest.raises(DeviceError, match="allocation"):
        harness.device.open_memory([large], [group()], CHUNK_TOKENS)
