"""Ends transfers when the GPU is done with them: one thread for each GPU.

It sleeps on a semaphore that the driver posts from the streams.  A broken GPU posts nothing, so while transfers are under
way it also looks every few seconds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from lmcache_transfer_torch.cuda.driver import GpuDriver
from lmcache_transfer_torch.cuda.ordering import Ready
from lmcache_transfer_torch.cuda.posix_semaphore import PosixSemaphore
from lmcache_transfer_torch.device import DeviceError

logger = logging.getLogger(__name__)

WATCH_SECONDS: Final = 2.0
RESCUE_SECONDS: Final = 5.0
"""How long a transfer of a worker that has left may still wait for that worker's event."""


@dataclass(slots=True, eq=False)
class Pending:
    """A transfer that the GPU works on."""

    event: int
    ready: Ready
    end: Callable[[Pending, bool], None]
    """Called once; what it raises is logged."""
    arrives: bool = True
    """False: it has failed, and only waits until nothing of it runs any more."""
    left_at: float | None = None
    """When its worker left."""


class Completions:
    """Transfers of one `line` end in the order in which they were added.  Any thread."""

    def __init__(self, driver: GpuDriver, watch_seconds: float = WATCH_SECONDS) -> None:
        self._driver = driver
        self._watch_seconds = watch_seconds
        self._semaphore = PosixSemaphore()
        self._lock = threading.Lock()
        self._lines: dict[int, deque[Pending]] = {}
        self._left: set[int] = set()
        """Lines whose worker has left."""
        self._failure: str | None = None
        self._giving_up = self._closing = False
        self._thread = threading.Thread(target=self._run, name="lmcache-cuda-completions", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> str | None:
        """Why the GPU cannot be used any more."""
        return self._failure

    @property
    def count(self) -> int:
        with self._lock:
            return sum(map(len, self._lines.values()))

    def add(self, line: int, pending: Pending, stream: int) -> None:
        """It is over when `stream` gets here; its event is recorded before.  Raises DeviceError when that cannot be
        noticed: it is not added then.  It may have ended when this returns."""
        with self._lock:
            alone = not self._lines
            self._lines.setdefault(line, deque()).append(pending)
        try:
            self._driver.post(stream, self._semaphore.address)
        except DeviceError:
            if self._drop(line, pending):
                raise
            return  # another completion woke the thread, which found this one completed
        if alone:
            self._semaphore.post()  # from now on it looks by itself, too

    def fail(self, reason: str, lost: tuple[int, Pending] | None = None) -> None:
        """The GPU cannot be used any more: every transfer fails as soon as nothing runs.  `lost` is one whose end the GPU
        will not tell."""
        with self._lock:
            if lost is not None:
                self._lines.setdefault(lost[0], deque()).append(lost[1])
            first, self._failure = self._failure is None, self._failure or reason
        if first:
            logger.error("a gpu cannot be used any more gpu=%s reason=%s", self._driver.info.uuid, reason)
        self._semaphore.post()

    def worker_left(self, lines: set[int]) -> None:
        """What still waits for its events is abandoned after a while.  The lines are this worker's until this returns."""
        now = time.monotonic()
        with self._lock:
            for line in lines:
                for pending in self._lines.get(line, ()):
                    pending.left_at = pending.left_at or now
                    self._left.add(line)

    def give_up(self) -> None:
        """Whatever waits for a worker, from now on."""
        self._giving_up = True
        self._semaphore.post()

    def close(self, seconds: float) -> bool:
        """After `give_up`, when nothing is added any more.  False when a transfer has not ended in time."""
        with self._lock:
            self._closing = True
        self._semaphore.post()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._lock:
                idle = not self._lines
            if idle and self._closing:
                return
            self._semaphore.wait(None if idle else self._watch_seconds)
            try:
                self._sweep()
                self._rescue()
            except DeviceError as error:
                self.fail(str(error))
            if self._failure is not None:
                self._end_all()

    def _sweep(self) -> None:
        with self._lock:
            lines = list(self._lines)
        for line in lines:
            while (pending := self._front(line)) is not None and self._driver.is_complete(pending.event):
                self._end(line, pending, pending.arrives)

    def _rescue(self) -> None:
        """A worker that died between its handle and its event would hold its stream for ever.  Only the first of a line
        can be waiting; and its event is signalled again each time, because the worker may overwrite what frees it."""
        limit = time.monotonic() - RESCUE_SECONDS
        with self._lock:
            lines = [self._lines[line] for line in (list(self._lines) if self._giving_up else self._left)]
            abandoned = [
                [each for each in line if self._giving_up or (each.left_at is not None and each.left_at < limit)]
                for line in lines
            ]
        for line in abandoned:
            for pending in line:
                pending.arrives = False
            for first in line[:1]:
                first.ready.give_up()

    def _end_all(self) -> None:
        with self._lock:
            waiting = [(number, pending) for number, line in self._lines.items() for pending in line]
        if not waiting:
            return
        try:
            for _, pending in waiting:
                pending.ready.give_up()
            self._driver.synchronize()
        except DeviceError as error:
            logger.debug("a broken gpu was waited for: %s", error)  # its work is gone with it
        for number, pending in waiting:
            self._end(number, pending, arrived=False)

    def _front(self, line: int) -> Pending | None:
        with self._lock:
            queue = self._lines.get(line)
            return queue[0] if queue else None

    def _end(self, line: int, pending: Pending, arrived: bool) -> None:
        if not self._drop(line, pending):
            return  # its caller got an error, and adds it anew
        try:
            pending.end(pending, arrived)
        except Exception:  # the thread must outlive what others do in it
            logger.exception("a transfer could not be ended")

    def _drop(self, line: int, pending: Pending) -> bool:
        """False when it was gone already."""
        with self._lock:
            queue = self._lines.get(line, deque())
            if pending not in queue:
                return False
            queue.remove(pending)
            if not queue:
                del self._lines[line]
                self._left.discard(line)
            return True
