"""One event loop in one daemon thread."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future

from lmcache_core.contracts.clock import SystemClock
from lmcache_core.jobs.executor import STOP_SECONDS
from lmcache_core.jobs.fault_log import FaultLog

logger = logging.getLogger(__name__)

Hook = Callable[[], Awaitable[object]]


class LoopThread:
    """Lives from `start` until its work is done, whatever is raised on it meanwhile."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stop_seconds = STOP_SECONDS
        """How long `stopped` may take; read when the work is done."""
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self._faults = FaultLog(logger, SystemClock(), f"thread={name}")

    def start(self, started: Hook, work: Hook, stopped: Hook, timeout_seconds: float) -> None:
        """Run `started`, `work` and `stopped` on the loop, one after the other, and wait until the first is done.

        What it raises is raised here, or TimeoutError when it takes too long; then the others are not run, and thread
        and loop are gone, unless it would not be cancelled."""
        begun: Future[None] = Future()
        # The hooks are known to the running thread alone: their owner must not be kept by its own thread's object.
        thread = threading.Thread(
            target=self._run, args=(started, work, stopped, timeout_seconds, begun), name=self.name, daemon=True
        )
        try:
            thread.start()
        except BaseException:
            self._loop.close()
            raise
        self._thread = thread
        try:
            begun.result(timeout_seconds + STOP_SECONDS)
        except BaseException:
            begun.cancel()
            if not self.join(2 * STOP_SECONDS):
                logger.error("starting cannot be cancelled thread=%s; the thread is left behind", self.name)
            raise
        finally:
            del begun  # it holds what was raised, which holds this frame

    def post(self, function: Callable[[], object]) -> bool:
        """Call it on the loop soon.  False, and it is not called, when the loop has ended.  Any thread; never blocks."""
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            return False
        return True

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the end, at most so long.  Did it come?"""
        assert self._thread is not None
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    # In the thread.

    def _run(self, started: Hook, work: Hook, stopped: Hook, timeout_seconds: float, begun: Future[None]) -> None:
        life = self._loop.create_task(self._live(started, work, stopped, timeout_seconds, begun))
        try:
            while not (life.done() or self._loop.is_closed()):
                try:
                    self._loop.run_until_complete(life)
                except BaseException:  # noqa: BLE001 - a thread's top: what leaves any task stops the loop, and it goes on
                    if not life.done():
                        self._faults.exception("a task ended the event loop, which goes on")
            if life.done() and not life.cancelled() and (error := life.exception()):
                logger.critical("an event loop ended too early thread=%s", self.name, exc_info=error)
        finally:
            if not begun.done():
                begun.set_exception(RuntimeError("the event loop ended"))
            self._loop.close()

    async def _live(
        self, started: Hook, work: Hook, stopped: Hook, timeout_seconds: float, begun: Future[None]
    ) -> None:
        try:
            async with asyncio.timeout(timeout_seconds):
                await started()
        except BaseException as error:  # noqa: BLE001 - it is raised where `start` waits
            await _end_background()
            if begun.set_running_or_notify_cancel():
                is_plain = isinstance(error, Exception)
                begun.set_exception(error if is_plain else RuntimeError(f"the event loop ended: {error!r}"))
            del begun  # as in `start`
            return
        if begun.set_running_or_notify_cancel():
            begun.set_result(None)
            await _outlast(work)
        try:
            async with asyncio.timeout(self.stop_seconds):
                await stopped()
        except BaseException:  # a plugin's boundary: what it left running is to end all the same
            logger.exception("stopping an l2 adapter raised thread=%s", self.name)
        await _end_background()


async def _outlast(work: Hook) -> None:
    while True:
        try:
            await work()
            return
        except asyncio.CancelledError:
            pass  # by somebody who cancels all the tasks there are: this one is not his


async def _end_background() -> None:
    """End whatever somebody left running here."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=STOP_SECONDS)
    await asyncio.get_running_loop().shutdown_asyncgens()
