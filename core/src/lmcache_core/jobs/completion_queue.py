"""Where an adapter puts what is done, and a controller picks it up."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from lmcache_core.contracts.completion import Completion, CompletionSource


class CompletionQueue(CompletionSource):
    """A list of completions with an eventfd in front of it.

    The descriptor is readable exactly while something is waiting: both change together, under one lock that is held for
    one system call that cannot block.  So no wake-up is lost and none is false.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[Completion] = []
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def post(self, completion: Completion) -> None:
        """Add one.  Any thread; never blocks.  After `close` it is kept for `drain`, but nobody is woken."""
        with self._lock:
            self._waiting.append(completion)
            if len(self._waiting) == 1 and self._fd >= 0:
                os.eventfd_write(self._fd, 1)

    def fileno(self) -> int:
        """The descriptor to poll, -1 after `close`."""
        return self._fd

    def drain(self) -> Sequence[Completion]:
        """Everything that is waiting, in the order it was posted, each exactly once.  Never blocks; works after `close`."""
        with self._lock:
            taken, self._waiting = self._waiting, []
            if taken and self._fd >= 0:
                os.eventfd_read(self._fd)
            return taken

    def close(self) -> None:
        """Give the descriptor back; take it out of every poll first.  Calling it again does nothing."""
        with self._lock:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)

    def __del__(self) -> None:
        # A late completion may follow an adapter's close, so the queue outlives it and goes with its last owner.
        if hasattr(self, "_fd"):
            self.close()
