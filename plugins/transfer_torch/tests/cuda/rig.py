"""A worker with pages on a simulated GPU, an L1 of anonymous memory, and the device between them."""

from __future__ import annotations

import ctypes
import mmap
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from lmcache_core import MemoryRegion
from lmcache_kv_layout import EngineKVFormat, PageCopier, PagedGroup
from lmcache_transfer_torch.cuda.device import CudaDevice
from lmcache_transfer_torch.cuda.memory import CudaMemory
from lmcache_transfer_torch.cuda.semaphore_handle import BUFFER_BYTES, SemaphoreHandle
from lmcache_transfer_torch.descriptors import CudaRawStorage, TensorMetadata
from lmcache_transfer_torch.device import TransferJob, TransferPart
from plugins.transfer_torch.tests.cuda.simulated_gpu import UUIDS, Machine, compile_for_simulation

WATCH_SECONDS = 0.01
CHUNK_TOKENS = 8


def paged_group(
    layers: int = 2,
    kv_axis: int = 1,
    heads: int = 2,
    head_bytes: int = 16,
    blocks: int = 12,
    slots: int = 4,
    hnd: bool = False,
    padding: int = 0,
) -> PagedGroup:
    """Planes one behind the other in one storage, blocks `padding` bytes apart."""
    slot, head = (head_bytes, slots * head_bytes) if hnd else (heads * head_bytes, head_bytes)
    block = slots * heads * head_bytes + padding
    bases = tuple((0, plane * blocks * block) for plane in range(kv_axis * layers))
    return PagedGroup(
        EngineKVFormat.NL_X_NB_BS_NH_CS, layers, kv_axis, heads, head_bytes, 1, "uint8", blocks, slots, slots,
        block, slot, head, bases,
    )  # fmt: skip


def group_bytes(group: PagedGroup) -> int:
    return len(group.bases) * group.blocks * group.block_stride


@dataclass(eq=False)
class Outcome:
    """Outcomes of a transfer's callback."""

    arrivals: list[bool] = field(default_factory=list)
    came: threading.Event = field(default_factory=threading.Event)

    def __call__(self, arrived: bool) -> None:
        self.arrivals.append(arrived)
        self.came.set()

    def result(self, seconds: float = 20.0) -> bool:
        assert self.came.wait(seconds), "no callback came"
        assert len(self.arrivals) == 1, "the callback came more than once"
        return self.arrivals[0]


class Worker:
    """Pages of several groups, each in an allocation of its own, and a handle for each."""

    def __init__(self, rig: Rig, groups: Sequence[PagedGroup], seed: int = 0) -> None:
        self.rig = rig
        self.groups = tuple(
            replace(group, bases=tuple((number, offset) for _, offset in group.bases))
            for number, group in enumerate(groups)
        )
        machine = rig.machine
        self.lengths = [group_bytes(group) for group in groups]
        self.addresses = [machine.allocate(length) for length in self.lengths]
        self.fill(seed)
        self.storages = [
            CudaRawStorage(
                TensorMetadata("uint8", (length,), (1,), 0, UUIDS[0]), 1, machine.share(address, length), 0, length
            )
            for address, length in zip(self.addresses, self.lengths, strict=True)
        ]
        self.semaphores = machine.allocate(BUFFER_BYTES)
        self.semaphore_handle = machine.share(self.semaphores, BUFFER_BYTES)
        self._sequence = 0

    def fill(self, seed: int) -> None:
        for address, length in zip(self.addresses, self.lengths, strict=True):
            ctypes.memmove(address, random.Random(seed).randbytes(length), length)

    def pages(self) -> list[bytes]:
        return [ctypes.string_at(*span) for span in zip(self.addresses, self.lengths, strict=True)]

    def bases(self, number: int) -> list[int]:
        return [self.addresses[number] + offset for _, offset in self.groups[number].bases]

    def open(self) -> CudaMemory:
        return self.rig.device.open_memory(self.storages, self.groups, CHUNK_TOKENS)

    def event(self, happened: bool = True) -> tuple[bytes, Callable[[], None]]:
        """Its handle, and what makes it happen."""
        machine = self.rig.machine
        if not self.rig.isolated_ipc:
            handle, happen = machine.record_event()
        else:
            self._sequence += 1
            sequence, address = self._sequence, self.semaphores + 8
            handle = SemaphoreHandle(self.semaphore_handle, 8, sequence).encode()

            def happen() -> None:
                machine.write_value(address, sequence)

        if happened:
            happen()
        return handle, happen


class Rig:
    def __init__(
        self, machine: Machine | None = None, isolated_ipc: bool = False, pinnable: bool = True, l1_bytes: int = 1 << 20
    ) -> None:
        self.machine = machine or Machine()
        self.isolated_ipc = isolated_ipc
        self._l1 = mmap.mmap(-1, l1_bytes)
        view = memoryview(self._l1)
        self.l1 = ctypes.addressof(ctypes.c_char.from_buffer(self._l1))
        self.l1_bytes = l1_bytes
        region = MemoryRegion(self.l1, l1_bytes, view) if pinnable else None
        self.device = CudaDevice(self.machine, compile_for_simulation, region, isolated_ipc, WATCH_SECONDS)
        self.random = random.Random(7)

    def job(self, worker: Worker, blocks: Sequence[Sequence[int]], offset: int = 0, ready: bytes = b"") -> TransferJob:
        """Objects one behind the other in L1 from `offset` on, each with the regions of all groups; `blocks` of each group
        are those of all objects."""
        sizes = [group.object_layout(CHUNK_TOKENS).payload_bytes for group in worker.groups]
        count = len(blocks[0]) // worker.groups[0].blocks_per_chunk(CHUNK_TOKENS)
        parts = []
        for number, ids in enumerate(blocks):
            first = self.l1 + offset + sum(sizes[:number])
            parts.append(TransferPart(number, tuple(ids), tuple(first + n * sum(sizes) for n in range(count))))
        return TransferJob(tuple(parts), ready or worker.event()[0])

    def stored(self, job: TransferJob, worker: Worker) -> list[bytes]:
        """The regions that a job is about, as L1 has them."""
        return [
            ctypes.string_at(address, worker.groups[part.group].object_layout(CHUNK_TOKENS).payload_bytes)
            for part in job.parts
            for address in part.objects
        ]

    def expected(self, job: TransferJob, worker: Worker) -> list[bytes]:
        """The same, as the CPU's copier makes them from the worker's pages."""
        made = []
        for part in job.parts:
            group = worker.groups[part.group]
            size = group.object_layout(CHUNK_TOKENS).payload_bytes
            buffers = [ctypes.create_string_buffer(size) for _ in part.objects]
            PageCopier(native="off").gather(
                group, worker.bases(part.group), part.blocks, [ctypes.addressof(buffer) for buffer in buffers]
            )
            made += [buffer.raw for buffer in buffers]
        return made

    def scrub(self) -> None:
        """L1 holds something else."""
        ctypes.memmove(self.l1, self.random.randbytes(self.l1_bytes), self.l1_bytes)

    def close(self) -> None:
        self.device.close(10)

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        assert self.machine.violations == []
