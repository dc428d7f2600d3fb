"""A GPU that is not there: its memory is this process's, its streams are threads, and it keeps the driver's rules.

Work happens some time after it was submitted, in the order of its stream.  A copy must stay inside of one allocation and
of one pinned stretch; what breaks a rule is written down.  Any call can be made to fail, and work can break the GPU.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

from lmcache_transfer_torch.cuda.driver import LASTING, DriverError, GpuInfo, Span
from lmcache_transfer_torch.cuda.page_images import PageImage
from lmcache_transfer_torch.cuda.page_shape import THREADS, PageShape

BROKEN = "CUDA_ERROR_ILLEGAL_ADDRESS"
OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"
UUIDS = ("00000000-1111-2222-3333-444444444444", "99999999-8888-7777-6666-555555555555")
SHARED_UNIT = 2 << 20
"""Smaller allocations lie together in blocks of that number of bytes, and a handle gives access to all of its block."""
PARAMETERS = ("i64", "i64", "i64", "i64", "i32", "i64", "i64")


def compile_for_simulation(shape: PageShape, gather: bool, capability: int) -> PageImage:
    image = json.dumps({"shape": asdict(shape), "gather": gather, "capability": capability}).encode()
    return PageImage(image, "move_pages", THREADS, 0, PARAMETERS)


@dataclass(eq=False)
class Event:
    """Of any process."""

    recorded: int = 0
    completed: int = 0


@dataclass
class Faults:
    """What goes wrong, and when."""

    at_call: int | None = None
    """The number of the call that fails, counted from 0."""
    name: str = OUT_OF_MEMORY
    in_copy: bool = False
    """The next copy breaks the GPU while it works."""
    copy_seconds: float = 0.0
    only: str | None = None
    """Calls of another name neither fail nor count."""


class Machine:
    """GPUs, and what processes share on them."""

    def __init__(self, gpus: int = 1, capability: int = 90) -> None:
        self.changed = threading.Condition()
        self.faults = Faults()
        self.live: Counter[str] = Counter()
        """What exists, by kind."""
        self.violations: list[str] = []
        self.calls: list[str] = []
        self.before: Callable[[str], None] | None = None
        """Gets the name of each call before it does anything; what it raises is raised by the call."""
        self.shared_memory: dict[bytes, Span] = {}
        self.shared_events: dict[bytes, Event] = {}
        self.blocks: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self.numbers = itertools.count(1)
        self._infos = tuple(GpuInfo(n, UUIDS[n], f"simulated {n}", capability) for n in range(gpus))

    @property
    def gpus(self) -> Sequence[GpuInfo]:
        return self._infos

    def open(self, ordinal: int) -> SimulatedGpu:
        return SimulatedGpu(self, self._infos[ordinal])

    # --- what a worker does in its own process

    def allocate(self, length: int) -> int:
        block = ctypes.create_string_buffer(length + 512)
        address = -(-ctypes.addressof(block) // 256) * 256
        self.blocks[address] = block
        return address

    def share(self, address: int, length: int) -> bytes:
        handle = next(self.numbers).to_bytes(64, "little")
        self.shared_memory[handle] = Span(address, length)
        return handle

    def record_event(self) -> tuple[bytes, Callable[[], None]]:
        """An event that has been recorded, and what makes it happen."""
        event = Event(recorded=1)
        handle = next(self.numbers).to_bytes(64, "big")
        self.shared_events[handle] = event

        def happen() -> None:
            with self.changed:
                event.completed = event.recorded
                self.changed.notify_all()

        return handle, happen

    def has_happened(self, handle: bytes) -> bool:
        event = self.shared_events[handle]
        return event.completed >= event.recorded

    def write_value(self, address: int, value: int) -> None:
        with self.changed:
            ctypes.c_uint64.from_address(address).value = value
            self.changed.notify_all()

    def until(self, condition: Callable[[], bool], seconds: float = 20.0) -> bool:
        with self.changed:
            return self.changed.wait_for(condition, seconds)


@dataclass(eq=False)
class Stream:
    work: queue.SimpleQueue[Callable[[], None] | None] = field(default_factory=queue.SimpleQueue)
    submitted: int = 0
    finished: int = 0


class SimulatedGpu:
    """GpuDriver."""

    def __init__(self, machine: Machine, info: GpuInfo) -> None:
        self._machine = machine
        self._info = info
        self.broken: str | None = None
        self._device: dict[int, Span] = {}
        self._hosts: dict[int, Span] = {}
        self._pins: dict[int, Span] = {}
        self._opened: dict[int, bytes] = {}
        self._streams: dict[int, Stream] = {}
        self._events: dict[int, Event] = {}
        self._modules: dict[int, tuple[PageShape, bool]] = {}

    @property
    def info(self) -> GpuInfo:
        return self._info

    def close(self) -> None:
        for stream in list(self._streams):
            self.destroy_stream(stream)

    # --- memory

    def allocate(self, length: int) -> int:
        self._call("allocate")
        return self._add("memory", self._device, self._machine.allocate(length), length)

    def free(self, address: int) -> None:
        self._call("free")
        self._remove("memory", self._device, address)
        del self._machine.blocks[address]

    def allocate_host(self, length: int) -> int:
        self._call("allocate_host")
        return self._add("host memory", self._hosts, self._machine.allocate(length), length)

    def free_host(self, address: int) -> None:
        self._call("free_host")
        self._remove("host memory", self._hosts, address)
        del self._machine.blocks[address]

    def pin(self, address: int, length: int) -> None:
        self._call("pin")
        self._add("pin", self._pins, address, length)

    def unpin(self, address: int) -> None:
        self._call("unpin")
        self._remove("pin", self._pins, address)

    def open_memory(self, handle: bytes) -> int:
        self._call("open_memory")
        span = self._machine.shared_memory.get(handle)
        if span is None:
            raise DriverError("open_memory", "CUDA_ERROR_INVALID_VALUE", "no such handle")
        if span.address in self._opened:
            self._machine.violations.append("a handle was opened twice")
        self._opened[span.address] = handle
        self._machine.live["import"] += 1
        return span.address

    def close_memory(self, address: int) -> None:
        self._call("close_memory")
        del self._opened[address]
        self._machine.live["import"] -= 1

    def export_memory(self, address: int) -> bytes:
        self._call("export_memory")
        if self._device[address].length % SHARED_UNIT:
            self._machine.violations.append("what lies beside an exported allocation is exported with it")
        return self._machine.share(*self._device[address])

    def allocation(self, address: int) -> Span:
        self._call("allocation")
        return self._machine.shared_memory[self._opened[address]]

    def clear(self, address: int, length: int) -> None:
        self._call("clear")
        ctypes.memset(address, 0, length)

    # --- streams and events

    def create_stream(self) -> int:
        self._call("create_stream")
        number, stream = next(self._machine.numbers), Stream()
        self._streams[number] = stream
        self._machine.live["stream"] += 1
        threading.Thread(target=self._serve, args=(stream,), daemon=True).start()
        return number

    def destroy_stream(self, stream: int) -> None:
        self._streams.pop(stream).work.put(None)
        self._machine.live["stream"] -= 1

    def check(self, stream: int) -> None:
        self._call("check")

    def synchronize(self) -> None:
        self._call("synchronize")
        streams = [(stream, stream.submitted) for stream in self._streams.values()]
        self._machine.until(lambda: all(stream.finished >= count for stream, count in streams))
        self._healthy("synchronize")

    def create_event(self, shared: bool) -> int:
        self._call("create_event")
        return self._event(Event(), "shared event" if shared else "event")

    def destroy_event(self, event: int) -> None:
        self._call("destroy_event")
        del self._events[event]
        self._machine.live["any event"] -= 1

    def open_event(self, handle: bytes) -> int:
        self._call("open_event")
        event = self._machine.shared_events.get(handle)
        if event is None:
            raise DriverError("open_event", "CUDA_ERROR_INVALID_HANDLE", "no such event")
        return self._event(event, "opened event")

    def export_event(self, event: int) -> bytes:
        self._call("export_event")
        handle = next(self._machine.numbers).to_bytes(64, "big")
        self._machine.shared_events[handle] = self._events[event]
        return handle

    def record(self, event: int, stream: int) -> None:
        self._call("record")
        known = self._events[event]
        with self._machine.changed:
            known.recorded += 1
            count = known.recorded

        def happen() -> None:
            with self._machine.changed:
                known.completed = max(known.completed, count)
                self._machine.changed.notify_all()

        self._submit(stream, happen)

    def wait_event(self, stream: int, event: int) -> None:
        self._call("wait_event")
        known = self._events[event]
        count = known.recorded
        self._submit(stream, lambda: self._wait(lambda: known.completed >= count))

    def is_complete(self, event: int) -> bool:
        self._call("is_complete")
        known = self._events[event]
        return known.completed >= known.recorded

    def wait_value(self, stream: int, address: int, value: int) -> None:
        self._call("wait_value")
        self._reachable(address, 8)
        cell = ctypes.c_uint64.from_address(address)

        def look() -> None:
            """Now and then: a number that does not stay is not seen."""
            while self.broken is None and cell.value < value:
                time.sleep(0.002)

        self._submit(stream, look)

    def write_value(self, stream: int, address: int, value: int) -> None:
        self._call("write_value")
        self._reachable(address, 8)
        self._submit(stream, lambda: self._machine.write_value(address, value))

    def post(self, stream: int, semaphore: int) -> None:
        self._call("post")
        self._submit(stream, lambda: ctypes.CDLL(None).sem_post(ctypes.c_void_p(semaphore)))

    # --- copies and kernels

    def copy_to_device(self, device: int, host: int, length: int, stream: int) -> None:
        self._call("copy_to_device")
        self._copy(device, host, device, host, length, stream)

    def copy_to_host(self, host: int, device: int, length: int, stream: int) -> None:
        self._call("copy_to_host")
        self._copy(host, device, device, host, length, stream)

    def load(self, image: bytes) -> int:
        self._call("load")
        described = json.loads(image)
        number = next(self._machine.numbers)
        self._modules[number] = (PageShape(**described["shape"]), described["gather"])
        self._machine.live["module"] += 1
        return number

    def unload(self, module: int) -> None:
        self._call("unload")
        del self._modules[module]
        self._machine.live["module"] -= 1

    def function(self, module: int, name: str) -> int:
        self._call("function")
        return module

    def launch(
        self, function: int, grid: tuple[int, int, int], threads: int, arguments: Sequence[tuple[str, int]], stream: int
    ) -> None:
        self._call("launch")
        shape, gather = self._modules[function]
        assert tuple(kind for kind, _ in arguments) == PARAMETERS
        assert threads == THREADS
        bases, blocks, staged, object_words, first_plane, *rest = (value for _, value in arguments)
        assert rest == [0, 0]
        assert grid[0] == shape.tiles
        self._submit(
            stream,
            lambda: self._move(
                shape, gather, bases, blocks, staged, object_words * shape.word_bytes, first_plane, grid[1], grid[2]
            ),
        )

    # --- how it works

    def _move(
        self,
        shape: PageShape,
        gather: bool,
        bases: int,
        blocks: int,
        staged: int,
        object_bytes: int,
        first_plane: int,
        count: int,
        planes: int,
    ) -> None:
        word, row = shape.word_bytes, shape.head_words * shape.word_bytes
        ids = (ctypes.c_int64 * count).from_address(blocks)
        for plane in range(planes):
            base = ctypes.c_int64.from_address(bases + (first_plane + plane) * 8).value
            for number, block in enumerate(ids):
                owner, place = divmod(number, shape.blocks)
                stored = staged + owner * object_bytes + plane * shape.plane_bytes + place * shape.page_words * word
                for slot, head in itertools.product(range(shape.slots), range(shape.heads)):
                    there = stored + (slot * shape.heads + head) * row
                    self._reachable(there, row)
                    if block < 0:
                        if gather:
                            ctypes.memset(there, 0, row)
                        continue
                    inside = block * shape.block_stride + slot * shape.slot_stride + head * shape.head_stride
                    page = base + inside * word
                    self._reachable(page, row)
                    to, source = (there, page) if gather else (page, there)
                    ctypes.memmove(to, source, row)

    def _copy(self, to: int, source: int, device: int, host: int, length: int, stream: int) -> None:
        self._reachable(device, length)
        if not any(_within(host, length, span) for span in (*self._hosts.values(), *self._pins.values())):
            self._machine.violations.append("a copy touches memory that is not pinned, or two pinned stretches")

        def move() -> None:
            if self._machine.faults.copy_seconds:
                time.sleep(self._machine.faults.copy_seconds)
            if self._machine.faults.in_copy:
                self._break(BROKEN)
            else:
                ctypes.memmove(to, source, length)

        self._submit(stream, move)

    def _serve(self, stream: Stream) -> None:
        while (work := stream.work.get()) is not None:
            if self.broken is None:
                work()
            with self._machine.changed:
                stream.finished += 1
                self._machine.changed.notify_all()

    def _submit(self, stream: int, work: Callable[[], None]) -> None:
        known = self._streams[stream]
        known.submitted += 1
        known.work.put(work)

    def _wait(self, condition: Callable[[], bool]) -> None:
        self._machine.until(lambda: self.broken is not None or condition(), 60)

    def _call(self, name: str) -> None:
        machine, faults = self._machine, self._machine.faults
        self._healthy(name)
        if machine.before is not None:
            machine.before(name)
        if faults.only in (None, name):
            number = len(machine.calls)
            machine.calls.append(name)
            if number == faults.at_call:
                if faults.name in LASTING:
                    self._break(faults.name)
                raise DriverError(name, faults.name, "injected")

    def _healthy(self, name: str) -> None:
        if self.broken is not None:
            raise DriverError(name, self.broken, "the gpu is broken")

    def _break(self, name: str) -> None:
        with self._machine.changed:
            self.broken = name
            self._machine.changed.notify_all()

    def _reachable(self, address: int, length: int) -> None:
        shared = self._machine.shared_memory
        spans = itertools.chain(list(self._device.values()), [shared[handle] for handle in list(self._opened.values())])
        if not any(_within(address, length, span) for span in spans):
            self._machine.violations.append(f"{length} bytes of no allocation are touched")

    def _add(self, kind: str, spans: dict[int, Span], address: int, length: int) -> int:
        spans[address] = Span(address, length)
        self._machine.live[kind] += 1
        return address

    def _remove(self, kind: str, spans: dict[int, Span], address: int) -> None:
        del spans[address]
        self._machine.live[kind] -= 1

    def _event(self, event: Event, kind: str) -> int:
        number = next(self._machine.numbers)
        self._events[number] = event
        self._machine.live["any event"] += 1
        self._machine.live[f"{kind}s made"] += 1
        return number


def _within(address: int, length: int, span: Span) -> bool:
    return span.address <= address and address + length <= span.address + span.length


@contextmanager
def watched(machine: Machine) -> Iterator[Machine]:
    """No rule was broken."""
    yield machine
    assert machine.violations == []
