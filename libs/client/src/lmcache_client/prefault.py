"""Maps pages of shared memory into this process before they are needed.

The first touch of a page costs a fault each, and where it is the first touch of all, the kernel clears it as well: ten times
the time of copying into it.  In one call for many pages, on another thread, it costs the caller nothing.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Final

from lmcache_client.extents import Extent, Extents
from lmcache_client.memory_calls import populate

logger = logging.getLogger(__name__)

SLICE_BYTES: Final = 4 << 20
"""What is mapped in one call: the kernel's lock on the address space is held meanwhile, and `close` waits for one."""
PAGE_BYTES: Final = 4096


class Prefault:
    """A thread that maps what it is asked to, first asked first done, and nothing twice.  Starts with the first request.

    Pages that exist keep their content; those that do not are allocated.  Where memory ends, or the kernel does not know
    the call (before Linux 5.14), it goes on without."""

    def __init__(self, address: int, length: int) -> None:
        self._address = address
        self._length = length
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._wanted: deque[Extent] = deque()
        self._asked = Extents()
        self._done_bytes = 0
        self._ended = False
        self._thread: threading.Thread | None = None

    @property
    def done_bytes(self) -> int:
        """What has been mapped.  Any thread."""
        return self._done_bytes

    def ask(self, offset: int, length: int) -> None:
        """Have this stretch mapped, as far as it lies in the memory.  Returns at once.  Any thread."""
        begin = max(0, offset) // PAGE_BYTES * PAGE_BYTES
        stretch = Extent(begin, min(offset + length, self._length) - begin)
        if stretch.length <= 0:
            return
        with self._lock:
            new = self._asked.missing(stretch)
            if self._ended or not new:
                return
            self._asked.add(stretch)
            self._wanted.extend(new)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="lmcache-prefault", daemon=True)
                self._thread.start()
            self._news.notify()

    def end(self) -> None:
        """Cancel what is not mapped yet.  When this returns, the memory is not touched any more."""
        with self._lock:
            self._ended = True
            self._news.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while (piece := self._next()) is not None:
            try:
                known = populate(self._address + piece.offset, piece.length)
            except OSError as error:
                logger.info("client maps its memory on first use from now on reason=%s", error.strerror)
                known = False
            with self._lock:
                if known:
                    self._done_bytes += piece.length
                else:
                    self._ended = True

    def _next(self) -> Extent | None:
        with self._lock:
            self._news.wait_for(lambda: self._ended or self._wanted)
            if self._ended:
                return None
            first = self._wanted.popleft()
            piece = Extent(first.offset, min(first.length, SLICE_BYTES))
            if piece.length < first.length:
                self._wanted.appendleft(Extent(piece.end, first.length - piece.length))
            return piece
