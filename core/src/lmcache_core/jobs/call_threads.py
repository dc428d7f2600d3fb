"""Blocking functions for coroutines, on threads that are never left behind."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

Value = TypeVar("Value")
Work = Callable[[], None]
Inbox = SimpleQueue[tuple[Work, Work] | None]


class CallThreads:
    """As many daemon threads as there were calls at a time; idle ones are used again, until `close`.

    Not the loop's own pool: its threads are no daemons, and one that hangs would keep the process from ending."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()  # guards the two below
        self._idle: list[Inbox] = []
        self._closed = False

    async def call(self, function: Callable[[], Value]) -> Value:
        """What the function returns, or raises, on a thread, with the caller's context.

        A cancellation passes when the function has ended, however long that takes: until then what it works on is in
        use.  Its result is lost then.  Raises RuntimeError where no thread can be started."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        result: Future[Value] = Future()

        run = partial(contextvars.copy_context().run, function)
        self._give(partial(_run_into, result, run), partial(_tell, loop, ended))
        cancellation: asyncio.CancelledError | None = None
        while not ended.done():
            try:
                await asyncio.wait((ended,))  # which does not cancel what it waits for
            except asyncio.CancelledError as error:
                cancellation = error
        try:
            if cancellation is not None:
                raise cancellation
            return result.result()
        finally:
            del cancellation, result  # they hold this frame

    def close(self) -> None:
        """Let idle threads end at once, and the others after their call.  A later call has a thread to itself."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for inbox in idle:
            inbox.put(None)

    def _give(self, work: Work, tell: Work) -> None:
        with self._lock:
            inbox = self._idle.pop() if self._idle else None
        if inbox is None:
            inbox = Inbox()
            threading.Thread(target=self._run, args=(inbox,), name=self._name, daemon=True).start()
        inbox.put((work, tell))

    def _run(self, inbox: Inbox) -> None:
        while (given := inbox.get()) is not None:
            work, tell = given
            work()
            with self._lock:  # idle before anybody is told, or the next call would start another thread
                stays = not self._closed
                if stays:
                    self._idle.append(inbox)
            tell()
            del given, work, tell  # or an idle thread keeps the last call's buffer
            if not stays:
                return


def _run_into(result: Future[Value], function: Callable[[], Value]) -> None:
    try:
        result.set_result(function())
    except BaseException as error:  # noqa: BLE001 - it is raised where the coroutine waits
        result.set_exception(error)


def _tell(loop: asyncio.AbstractEventLoop, ended: asyncio.Future[None]) -> None:
    try:
        loop.call_soon_threadsafe(ended.set_result, None)
    except RuntimeError:
        pass  # the loop has ended, and nobody waits
