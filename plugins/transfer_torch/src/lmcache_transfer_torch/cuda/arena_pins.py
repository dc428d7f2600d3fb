"""L1's memory, pinned in the background, slice by slice, as slots of it are used.

The copy engines reach only pinned memory by themselves.  Pinning all of a large L1 takes minutes and would allocate what
L1 has not allocated yet, so a slice is pinned when a transfer first touched it; until then transfers go through a buffer.
A slice that cannot be pinned stays as it is, and the reason is shown.
"""

from __future__ import annotations

import logging
import mmap
import threading
from collections import deque
from typing import Final

from lmcache_transfer_torch.cuda.driver import GpuDriver, Span
from lmcache_transfer_torch.device import DeviceError

logger = logging.getLogger(__name__)

SLICE_BYTES: Final = 64 << 20


class ArenaPins:
    """Of one arena.  Slices begin at multiples of `slice_bytes` of the process's addresses.  Any thread."""

    def __init__(self, driver: GpuDriver, arena: Span, slice_bytes: int = SLICE_BYTES) -> None:
        if arena.address % mmap.PAGESIZE or slice_bytes % mmap.PAGESIZE:
            raise ValueError("an arena and its slices begin at pages")
        self._driver = driver
        self._arena = arena
        self.slice_bytes = slice_bytes
        self._wake = threading.Condition()
        self._wanted: deque[int] = deque()
        self._known: set[int] = set()
        self._pinned: dict[int, Span] = {}
        self._failed: dict[int, str] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="lmcache-cuda-pins", daemon=True)
        self._thread.start()

    def covers(self, address: int, length: int) -> bool:
        """Is all of it pinned?  What is not will be soon, if it can be."""
        if address < self._arena.address or address + length > self._arena.address + self._arena.length:
            return False
        numbers = range(address // self.slice_bytes, (address + length - 1) // self.slice_bytes + 1)
        if all(number in self._pinned for number in numbers):
            return True
        with self._wake:
            for number in numbers:
                if number not in self._known:
                    self._known.add(number)
                    self._wanted.append(number)
            self._wake.notify()
        return False

    def status(self) -> dict[str, object]:
        with self._wake:
            return {
                "pinned_bytes": sum(span.length for span in self._pinned.values()),
                "slices_waiting": len(self._wanted),
                "slices_failed": len(self._failed),
                "failure": next(iter(self._failed.values()), None),
            }

    def close(self) -> None:
        """No transfer runs any more."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()
        for span in self._pinned.values():
            try:
                self._driver.unpin(span.address)
            except DeviceError as error:
                logger.warning("memory of l1 could not be unpinned reason=%s", error)
        self._pinned.clear()

    def _run(self) -> None:
        while (number := self._next()) is not None:
            span = self._slice(number)
            try:
                self._driver.pin(span.address, span.length)
            except DeviceError as error:
                if not self._failed:
                    logger.warning(
                        "memory of l1 cannot be pinned, transfers go through a buffer there reason=%s", error
                    )
                with self._wake:
                    self._failed[number] = str(error)
                continue
            with self._wake:
                self._pinned[number] = span

    def _next(self) -> int | None:
        with self._wake:
            self._wake.wait_for(lambda: self._closed or self._wanted)
            return None if self._closed else self._wanted.popleft()

    def _slice(self, number: int) -> Span:
        begin = max(number * self.slice_bytes, self._arena.address)
        end = min((number + 1) * self.slice_bytes, self._arena.address + self._arena.length)
        return Span(begin, end - begin)
