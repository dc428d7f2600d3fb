"""Memory in which objects are between a serde and a backend: bounded, and taken page by page as it is needed."""

from __future__ import annotations

import ctypes
import mmap
import threading
from bisect import bisect
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeVar

from lmcache_core import MemoryRegion

PAGE_BYTES: Final = mmap.PAGESIZE

Work = TypeVar("Work")


def pages(length: int) -> int:
    """`length`, rounded up to whole pages."""
    return -(-length // PAGE_BYTES) * PAGE_BYTES


def scratch_region(size_bytes: int) -> MemoryRegion:
    """Anonymous memory, given back with its last user.  A page is backed when it is first touched."""
    memory = mmap.mmap(-1, pages(size_bytes))
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return MemoryRegion(address, len(memory), memoryview(memory))


class Extent(NamedTuple):
    """Whole pages of the region."""

    offset: int
    length: int

    @property
    def end(self) -> int:
        return self.offset + self.length


class ScratchAllocator:
    """Hands out parts of one stretch, the lowest place first, so that pages which were backed are used again.  One caller
    at a time."""

    def __init__(self, offset: int, length: int) -> None:
        self.size_bytes: Final = length
        self._free = [Extent(offset, length)] if length else []

    @property
    def free_bytes(self) -> int:
        return sum(extent.length for extent in self._free)

    def take(self, length: int) -> Extent | None:
        """`length` bytes, rounded up to whole pages; None where there is no free place of that size now."""
        wanted = pages(length)
        for index, free in enumerate(self._free):
            if free.length >= wanted:
                rest = Extent(free.offset + wanted, free.length - wanted)
                self._free[index : index + 1] = [rest] if rest.length else []
                return Extent(free.offset, wanted)
        return None

    def give(self, extent: Extent) -> None:
        """What was taken, or a part of it, is free again."""
        if not extent.length:
            return
        at = bisect(self._free, extent)
        before = self._free[at - 1] if at else Extent(0, 0)
        behind = self._free[at] if at < len(self._free) else Extent(extent.end + 1, 0)
        if before.end > extent.offset or extent.end > behind.offset:
            raise AssertionError(f"{extent} is free already, or a part of it")
        begin, end, first, last = at, at, extent, extent
        if before.length and before.end == extent.offset:
            begin, first = at - 1, before
        if behind.length and extent.end == behind.offset:
            end, last = at + 1, behind
        self._free[begin:end] = [Extent(first.offset, last.end - first.offset)]


class ScratchQueue(Generic[Work]):
    """Work that waits for scratch memory, first come, first served: the oldest gets its part as soon as the others have
    given theirs back, whatever their sizes.  Any thread; `start` is called without a lock."""

    def __init__(self, allocator: ScratchAllocator, start: Callable[[Work, Extent], bool]) -> None:
        """`start` returns False where it came to nothing: then the memory is free again."""
        self._allocator = allocator
        self._start = start
        self._lock = threading.Lock()  # guards the allocator and the two below
        self._waiting: deque[tuple[Work, int]] = deque()
        self._closed = False

    @property
    def size_bytes(self) -> int:
        return self._allocator.size_bytes

    def add(self, work: Work, length: int) -> bool:
        """`length` must not exceed the size of the memory.  False, and nothing is done, once it is closed."""
        with self._lock:
            if self._closed:
                return False
            self._waiting.append((work, length))
        self._pump()
        return True

    def shrink(self, extent: Extent, length: int) -> Extent:
        """Keep the first `length` bytes of it alone."""
        kept = Extent(extent.offset, pages(length))
        with self._lock:
            self._allocator.give(Extent(kept.end, extent.end - kept.end))
        self._pump()
        return kept

    def give(self, extent: Extent) -> None:
        with self._lock:
            self._allocator.give(extent)
        self._pump()

    def close(self) -> list[Work]:
        """Take nothing more.  Returns what waits, and will never be started."""
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, deque()
        return [work for work, _ in waiting]

    @property
    def is_idle(self) -> bool:
        """True when nothing waits and all of the memory is free."""
        with self._lock:
            return not self._waiting and self._allocator.free_bytes == self._allocator.size_bytes

    def _pump(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    return
                extent = self._allocator.take(self._waiting[0][1])
                if extent is None:
                    return
                work, _ = self._waiting.popleft()
            if not self._start(work, extent):
                with self._lock:
                    self._allocator.give(extent)
