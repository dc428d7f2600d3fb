"""Order between a worker's work on the GPU and ours: two ways that workers and this server tell each other of events."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Final, Protocol

from lmcache_transfer_torch.cuda.driver import HANDLE_BYTES, GpuDriver
from lmcache_transfer_torch.cuda.imported_memory import Import, ImportedMemory
from lmcache_transfer_torch.cuda.semaphore_handle import BUFFER_BYTES, SLOT_BYTES, SLOTS, SemaphoreHandle
from lmcache_transfer_torch.device import DeviceError

RESTING: Final = 256
"""Events that wait for their next use.  A worker that asks for one late waits for the event's next use, so that is far off."""


SHARED_BYTES: Final = 2 << 20
"""The driver puts smaller allocations into one block of so much, and a handle of one of them opens the whole block: workers
would reach the tables that kernels read."""
BUFFERS_MAX: Final = 4
"""Buffers of events that one worker may have."""


class Ready(Protocol):
    """What one job waits for."""

    def wait(self, stream: int) -> None:
        """Work that is submitted to `stream` from now on happens behind it."""

    def give_up(self) -> None:
        """The worker is gone: let its waiters continue, as far as possible."""

    def close(self) -> None:
        """The job is over."""


class Peer(Protocol):
    """One worker, as far as its events go."""

    def ready(self, handle: bytes) -> Ready:
        """The worker's event.  Raises DeviceError when it is not available."""

    def close(self) -> None:
        """After the last of its events was closed."""


class Ordering(Protocol):
    """Any thread."""

    def peer(self) -> Peer: ...

    def signal(self, slot: int, event: int, stream: int) -> bytes:
        """Record `event`, which `take_event` gave, behind what was submitted to `stream`; the handle for the worker."""

    def take_event(self) -> int: ...

    def give_event(self, event: int) -> None:
        """What was recorded last has happened."""

    def take_slot(self) -> int:
        """A number for a stream that signals, until `give_slot`."""

    def give_slot(self, slot: int) -> None: ...

    def close(self) -> None: ...


class _Events:
    """Events, used in turn."""

    def __init__(self, driver: GpuDriver, shared: bool) -> None:
        self._driver = driver
        self._shared = shared
        self._resting: deque[int] = deque()

    def take(self) -> int:
        try:
            # One that has rested for the longest time.
            return self._resting.popleft() if len(self._resting) >= RESTING else self._driver.create_event(self._shared)
        except IndexError:  # another thread was faster
            return self._driver.create_event(self._shared)

    def give(self, event: int) -> None:
        self._resting.append(event)

    def close(self) -> None:
        while self._resting:
            self._driver.destroy_event(self._resting.popleft())


@dataclass(frozen=True, slots=True, eq=False)
class _ReadyEvent:
    driver: GpuDriver
    event: int

    def wait(self, stream: int) -> None:
        self.driver.wait_event(stream, self.event)

    def give_up(self) -> None:
        """An event of a process that has ended counts as happened."""

    def close(self) -> None:
        self.driver.destroy_event(self.event)


class _EventPeer:
    def __init__(self, driver: GpuDriver) -> None:
        self._driver = driver

    def ready(self, handle: bytes) -> Ready:
        if len(handle) != HANDLE_BYTES:
            raise DeviceError(
                f"an event handle of {len(handle)} bytes, where {HANDLE_BYTES} are sent; the engine's "
                "lmcache.mp.isolated_ipc and the server's --isolated-ipc must agree"
            )
        return _ReadyEvent(self._driver, self._driver.open_event(handle))

    def close(self) -> None:
        """It keeps nothing."""


class EventOrdering:
    """Events that the driver shares between processes."""

    def __init__(self, driver: GpuDriver) -> None:
        self._driver = driver
        self._events = _Events(driver, shared=True)
        self._handles: dict[int, bytes] = {}
        self.give_event = self._events.give

    def peer(self) -> Peer:
        return _EventPeer(self._driver)

    def take_event(self) -> int:
        event = self._events.take()
        if event not in self._handles:
            try:
                self._handles[event] = self._driver.export_event(event)
            except DeviceError:
                self._events.give(event)
                raise
        return event

    def signal(self, slot: int, event: int, stream: int) -> bytes:
        self._driver.record(event, stream)
        return self._handles[event]

    def take_slot(self) -> int:
        return 0

    def give_slot(self, slot: int) -> None:
        """There are none."""

    def close(self) -> None:
        self._events.close()
        self._handles.clear()


@dataclass(frozen=True, slots=True, eq=False)
class _ReadyValue:
    """An `address` of 0: the event has happened already."""

    driver: GpuDriver
    address: int
    sequence: int
    rescue: int

    def wait(self, stream: int) -> None:
        if self.address:
            self.driver.wait_value(stream, self.address, self.sequence)

    def give_up(self) -> None:
        if self.address:
            self.driver.write_value(self.rescue, self.address, self.sequence)  # the worker will not

    def close(self) -> None:
        """The worker's buffer stays mapped until it leaves."""


class _SemaphorePeer:
    """Keeps the worker's buffers mapped: mapping one takes longer than a transfer."""

    def __init__(self, driver: GpuDriver, memory: ImportedMemory, own: bytes, rescue: int) -> None:
        self._driver = driver
        self._memory = memory
        self._own = own
        self._rescue = rescue
        self._lock = threading.Lock()
        self._buffers: dict[bytes, Import] = {}

    def ready(self, handle: bytes) -> Ready:
        wanted = SemaphoreHandle.decode(handle)
        if not wanted.sequence:
            return _ReadyValue(self._driver, 0, 0, self._rescue)
        if wanted.memory == self._own:
            raise DeviceError("an event handle names this server's own events")
        address = self._buffer(wanted.memory).place(wanted.offset, SLOT_BYTES)
        return _ReadyValue(self._driver, address, wanted.sequence, self._rescue)

    def _buffer(self, handle: bytes) -> Import:
        known = self._buffers.get(handle)
        if known is not None:
            return known
        made = self._memory.open(handle)
        with self._lock:
            known = self._buffers.get(handle)
            if known is None and len(self._buffers) < BUFFERS_MAX:
                self._buffers[handle] = made
                return made
        self._memory.close(made)  # another thread was faster, or there are too many
        if known is None:
            raise DeviceError(f"one worker's events lie in {BUFFERS_MAX} buffers at most")
        return known

    def close(self) -> None:
        for buffer in self._buffers.values():
            self._memory.close(buffer)
        self._buffers.clear()


class SemaphoreOrdering:
    """Sequence numbers in memory: each side imports the other's buffer.  One slot for each stream that signals."""

    def __init__(self, driver: GpuDriver, memory: ImportedMemory) -> None:
        self._driver = driver
        self._memory = memory
        self._events = _Events(driver, shared=False)
        self._buffer = driver.allocate(SHARED_BYTES)
        try:
            driver.clear(self._buffer, BUFFER_BYTES)
            self._exported = driver.export_memory(self._buffer)
            self._rescue = driver.create_stream()
        except DeviceError:
            driver.free(self._buffer)
            raise
        self._lock = threading.Lock()
        self._slots = list(range(SLOTS - 1, 0, -1))
        self._sequences = [0] * SLOTS
        self.take_event, self.give_event = self._events.take, self._events.give

    def peer(self) -> Peer:
        return _SemaphorePeer(self._driver, self._memory, self._exported, self._rescue)

    def signal(self, slot: int, event: int, stream: int) -> bytes:
        # Only the one that submits to this stream counts its slot up.
        self._sequences[slot] += 1
        sequence, offset = self._sequences[slot], slot * SLOT_BYTES
        self._driver.write_value(stream, self._buffer + offset, sequence)
        self._driver.record(event, stream)
        return SemaphoreHandle(self._exported, offset, sequence).encode()

    def take_slot(self) -> int:
        with self._lock:
            if not self._slots:
                raise DeviceError(f"{SLOTS - 1} streams signal already; fewer workers can be registered on one GPU")
            return self._slots.pop()

    def give_slot(self, slot: int) -> None:
        """The next one goes on counting where this one stopped, so that an old handle never comes true anew."""
        with self._lock:
            self._slots.insert(0, slot)

    def close(self) -> None:
        self._events.close()
        self._driver.destroy_stream(self._rescue)
        self._driver.free(self._buffer)
