"""Results of another thread for the coroutines of one loop."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any


class Awaited(asyncio.Future[Any]):
    """It cannot be cancelled: the cancellation of a task that awaits it passes when it is done."""

    def cancel(self, msg: Any | None = None) -> bool:
        return False


class LoopMail:
    """Wakes its loop once for all that ended since the loop last looked: a wake-up is a system call on both sides, and
    the thread that makes one has to wait for the interpreter."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._results: deque[tuple[Awaited, BaseException | None, Any]] = deque()
        self._is_coming = False
        """The loop was woken, and has not looked yet."""

    def __len__(self) -> int:
        """Results that the loop has not looked at."""
        return len(self._results)

    def post(self, awaited: Awaited, error: BaseException | None, value: Any = None) -> None:
        """From the other thread.  Seen with the next wake-up, which is due."""
        self._results.append((awaited, error, value))

    def wake(self) -> None:
        """From the other thread: the loop is to look, where there is anything."""
        if self._is_coming or not self._results:
            return
        self._is_coming = True
        try:
            self.loop.call_soon_threadsafe(self._settle)
        except RuntimeError:
            if not self.loop.is_closed():  # otherwise no waiter is left
                raise

    def _settle(self) -> None:
        self._is_coming = False  # first: what is sent from here on comes with another wake-up
        while self._results:
            awaited, error, value = self._results.popleft()
            if error is None:
                awaited.set_result(value)
            else:
                awaited.set_exception(error)
