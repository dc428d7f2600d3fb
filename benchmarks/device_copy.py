"""Server-driven transfers on a GPU, beside plain copies of the same bytes in the same run.

`python -m benchmarks.device_copy` prints one table.  Where there is no GPU it says so and ends.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import statistics
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

from benchmarks.device_worker import DeviceWorker
from lmcache_core import MemoryRegion
from lmcache_kv_layout import EngineKVFormat, PagedGroup
from lmcache_transfer_torch.cuda.arena_pins import SLICE_BYTES
from lmcache_transfer_torch.cuda.device import CudaDevice
from lmcache_transfer_torch.cuda.driver import GpuDriver
from lmcache_transfer_torch.cuda.host_side import Waiter
from lmcache_transfer_torch.cuda.libcuda import CudaDrivers
from lmcache_transfer_torch.cuda.memory import CudaMemory
from lmcache_transfer_torch.cuda.page_images import PageCompiler
from lmcache_transfer_torch.descriptors import CudaRawStorage, TensorMetadata
from lmcache_transfer_torch.device import DeviceError, TransferJob, TransferPart

CHUNK_TOKENS = 256
CHUNKS = 8
PIECE = 32 << 20


def llama_group(blocks: int) -> PagedGroup:
    """K and V in one row, 32 layers, 8 heads of 128 in bfloat16, pages of 16 tokens, head-major: 32 MiB for each chunk."""
    slots, heads, head_bytes, layers = 16, 8, 512, 32
    page = slots * heads * head_bytes
    return PagedGroup(
        EngineKVFormat.NL_X_NB_NH_BS_CS, layers, 1, heads, head_bytes, 2, "bfloat16", blocks, slots, slots,
        page, head_bytes, slots * head_bytes, tuple((0, layer * blocks * page) for layer in range(layers)),
    )  # fmt: skip


class Bench:
    """A worker's process with pages, an L1 of this process, and the device between them."""

    def __init__(self, stack: ExitStack, drivers: CudaDrivers, kind: str) -> None:
        self.blocks = CHUNKS * CHUNK_TOKENS // 16
        self.group = llama_group(self.blocks)
        self.nbytes = len(self.group.bases) * self.blocks * self.group.block_stride
        self.worker = stack.enter_context(DeviceWorker(kind, self.nbytes))
        self._l1 = mmap.mmap(-1, 2 * self.nbytes + 2 * SLICE_BYTES)
        self.l1 = ctypes.addressof(ctypes.c_char.from_buffer(self._l1))
        region = MemoryRegion(self.l1, len(self._l1), memoryview(self._l1))
        self.device = CudaDevice(drivers, PageCompiler(), region, isolated_ipc=False)
        stack.callback(self.device.close)
        described = self.worker.described
        metadata = TensorMetadata("uint8", (self.nbytes,), (1,), 0, described["uuid"])
        storage = CudaRawStorage(metadata, 1, bytes.fromhex(described["raw"]), described["offset"], self.nbytes)
        self.memory: CudaMemory = self.device.open_memory([storage], [self.group], CHUNK_TOKENS)
        self.driver: GpuDriver = drivers.open(0)
        self.plain = self.driver.allocate(self.nbytes)
        self.streams = (self.driver.create_stream(), self.driver.create_stream())

    def transfer(self, gather: bool, half: int) -> Callable[[], None]:
        """One store or retrieve of all chunks, in one half of L1; returns what waits for it."""
        size = self.group.object_layout(CHUNK_TOKENS).payload_bytes
        first = self.l1 + half * self.nbytes
        part = TransferPart(0, tuple(range(self.blocks)), tuple(first + n * size for n in range(CHUNKS)))
        job = TransferJob((part,), bytes.fromhex(self.worker.ask("event")))
        over, arrived = threading.Event(), []

        def done(ok: bool) -> None:
            arrived.append(ok)
            over.set()

        def wait() -> None:
            over.wait()
            if not arrived[0]:
                raise RuntimeError("a transfer failed")

        (self.memory.submit_gather if gather else self.memory.submit_scatter)(job, done)
        return wait

    def copy(self, to_host: bool, half: int) -> Callable[[], None]:
        """The same bytes, contiguous, by the copy engine alone."""
        stream, waiter = self.streams[half], Waiter(self.driver)
        for offset in range(0, self.nbytes, PIECE):
            host, device = self.l1 + half * self.nbytes + offset, self.plain + offset
            # As in transfers, no copy may lie in two pinned slices.
            length = min(PIECE, self.nbytes - offset)
            cut = min(length, SLICE_BYTES - host % SLICE_BYTES)
            for begin, count in ((0, cut), (cut, length - cut)):
                if count and to_host:
                    self.driver.copy_to_host(host + begin, device + begin, count, stream)
                elif count:
                    self.driver.copy_to_device(device + begin, host + begin, count, stream)
        waiter.mark(stream)
        return waiter.wait


def gigabytes_per_second(nbytes: int, begin: Callable[[], list[Callable[[], None]]], rounds: int) -> float:
    """Median over rounds."""
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        for wait in begin():
            wait()
        seconds.append(time.perf_counter() - start)
    return nbytes / statistics.median(seconds) / 1e9


def measure(bench: Bench, rounds: int) -> None:
    for gather in (True, False):  # until L1 is pinned
        for half in (0, 1):
            bench.transfer(gather, half)()
    time.sleep(2)
    cases: tuple[
        tuple[str, int, Callable[[], list[Callable[[], None]]], Callable[[], list[Callable[[], None]]]], ...
    ] = (
        ("store (GPU to L1)", 1, lambda: [bench.transfer(True, 0)], lambda: [bench.copy(True, 0)]),
        ("retrieve (L1 to GPU)", 1, lambda: [bench.transfer(False, 0)], lambda: [bench.copy(False, 0)]),
        (
            "both at once",
            2,
            lambda: [bench.transfer(True, 0), bench.transfer(False, 1)],
            lambda: [bench.copy(True, 0), bench.copy(False, 1)],
        ),
    )
    print(f"{'':24}{'transfer':>12}{'plain copy':>12}{'share':>8}")
    for name, ways, ours, plain in cases:
        first, second = (gigabytes_per_second(ways * bench.nbytes, each, rounds) for each in (ours, plain))
        print(f"{name:24}{first:>7.1f} GB/s{second:>7.1f} GB/s{first / second:>8.0%}")


def measure_cost(bench: Bench, seconds: float) -> None:
    """What transfers cost a worker that computes all the time."""
    alone = bench.worker.ask("loop", seconds=seconds)
    stop = threading.Event()
    event = bytes.fromhex(bench.worker.ask("event"))
    size = bench.group.object_layout(CHUNK_TOKENS).payload_bytes
    part = TransferPart(0, tuple(range(bench.blocks)), tuple(bench.l1 + n * size for n in range(CHUNKS)))

    def transfers() -> None:
        while not stop.is_set():
            over = threading.Event()
            bench.memory.submit_gather(TransferJob((part,), event), lambda _, over=over: over.set())  # type: ignore[misc]
            over.wait()

    thread = threading.Thread(target=transfers)
    thread.start()
    try:
        beside = bench.worker.ask("loop", seconds=seconds)
    finally:
        stop.set()
        thread.join()
    print(f"\nmatrix products per second: {alone:.0f} alone, {beside:.0f} beside endless stores ({beside / alone:.0%})")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each half of the computing loop")
    arguments = parser.parse_args()
    try:
        drivers = CudaDrivers()
        if not drivers.gpus:
            raise DeviceError("the driver sees no GPU")
    except DeviceError as error:
        print(f"nothing was measured: {error}", file=sys.stderr)
        return 0
    with ExitStack() as stack:
        kind = "plain"
        try:
            import torch

            kind = "torch" if torch.cuda.is_available() else "plain"
        except ImportError:
            pass
        bench = Bench(stack, drivers, kind)
        print(
            f"{drivers.gpus[0].name}, {CHUNKS} chunks of {bench.nbytes // CHUNKS >> 20} MiB, median of {arguments.rounds}"
        )
        measure(bench, arguments.rounds)
        if kind == "torch":
            measure_cost(bench, arguments.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
