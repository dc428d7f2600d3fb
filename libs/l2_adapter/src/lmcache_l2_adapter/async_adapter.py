"""A whole L2 adapter from a few `async` methods that each deal with one object.

class Acme(AsyncL2Adapter):
    async def started(self):
        self.client = await acme.connect(self.settings.address)

    async def load(self, key, buffer):
        return Outcome.DONE if await self.client.read_into(key.object_id, buffer.view) else Outcome.MISSING

    async def store(self, key, buffer):
        await self.client.write(key.object_id, buffer.view)
        return Outcome.DONE

    async def contains(self, key):
        return await self.client.exists(key.object_id)

    async def stopped(self):
        await self.client.close()
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Final, ParamSpec, TypeVar

from lmcache_client.errors import LMCacheError, ResourceError
from lmcache_core import AdapterContext, BorrowedBuffer, ObjectKey, Outcome
from lmcache_l2_adapter.backend_calls import CircuitBreaker, RetryPolicy
from lmcache_l2_adapter.loop_executor import LoopExecutor
from lmcache_l2_adapter.object_adapter import ObjectL2Adapter

Value = TypeVar("Value")
Work = Callable[[], None]
Inbox = SimpleQueue[tuple[Work, Work] | None]


class CallThreads:
    """As many daemon threads as there were calls at a time; idle ones are used again, until `close`.

    Not the loop's own pool: its threads are not daemons, and one that hangs would keep the process from ending."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()  # guards the two below
        self._idle: list[Inbox] = []
        self._closed = False

    async def call(self, function: Callable[[], Value]) -> Value:
        """Call the function on a thread, with the caller's context, and return or raise what it does.

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
            with self._lock:  # idle before the caller is notified, or the next call would start another thread
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
        pass  # the loop has ended, and no coroutine waits


OPERATION_TIMEOUT_SECONDS: Final = 20.0
"""Less than the 30 s that a server gives a job (`l2_timeout_seconds`, counted from when it is submitted): an operation
that hangs is to be TIMED_OUT here, for its object alone, before the server takes the whole adapter for one that hangs."""

Parameters = ParamSpec("Parameters")


class AsyncL2Adapter(ObjectL2Adapter):
    """Write `store`, `load` and `contains` (and `delete`, `usage`, `list_keys` where you declare them; the last two are
    plain methods, called from other threads).

    All runs on one event loop in one daemon thread of the adapter's own: up to `concurrency` transfers at a time, loads
    first, and as many lookups beside them.  The rest is as with `BlockingL2Adapter`: retries, the breaker, pins, one
    completion per job, and one change of an object at a time.

    An operation that takes longer than `operation_timeout_seconds`, from its start and with all its attempts, is
    cancelled and TIMED_OUT.  Keep it below the server's `l2_timeout_seconds`.  **Its buffer counts as released when its
    coroutine has ended**, so nothing that a method started may touch the buffer beyond that.  For what blocks, `await
    self.in_thread(function, ...)`, and not `asyncio.to_thread`: a thread does not end when it is cancelled, and the
    former waits for it before it lets the cancellation pass.

    Call `super().__init__` last: it runs `started` and raises ResourceError where that fails.
    """

    def __init__(
        self,
        context: AdapterContext,
        concurrency: int = 64,
        operation_timeout_seconds: float = OPERATION_TIMEOUT_SECONDS,
        *,
        breaker: CircuitBreaker | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        """`breaker` and `retry` replace those that suit most backends; give each adapter its own."""
        executor = LoopExecutor(f"l2-{context.name}", concurrency, operation_timeout_seconds)
        super().__init__(context, executor, breaker, retry)
        self.__threads = CallThreads(f"l2-{context.name}-call")
        try:
            executor.start(self.started, self.__stopped)
        except LMCacheError:
            self.__threads.close()
            raise
        except Exception as error:
            self.__threads.close()
            reason = str(error) or type(error).__name__
            raise ResourceError(
                f"{context.name}: the adapter could not be started within {operation_timeout_seconds:g} s ({reason}); "
                "check its settings, and that its backend is reachable"
            ) from error

    async def in_thread(
        self, function: Callable[Parameters, Value], *arguments: Parameters.args, **named: Parameters.kwargs
    ) -> Value:
        """Call a function that blocks on a daemon thread, one of its own, and return or raise what it does.

        Where the operation is cancelled, this waits until the function has ended, so the buffer stays borrowed as long as
        it is in use; give the function a time-out of its own, or a call that hangs keeps buffer and place for ever."""
        return await self.__threads.call(partial(function, *arguments, **named))

    async def started(self) -> None:
        """Called once, on the loop, before anything else there.  Open the client here.  What it raises, or a time-out,
        stops the opening of the adapter; `stopped` is not called then."""

    @abstractmethod
    async def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        """Keep the bytes of the buffer under this key.  DONE (also when it is there already), or REJECTED where there
        is no room.  This and the other methods must not block, and may raise."""

    @abstractmethod
    async def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        """Fill the buffer.  DONE only when every byte was written; MISSING; DAMAGED when the object has another length."""

    @abstractmethod
    async def contains(self, key: ObjectKey) -> bool:
        """True where there is an object under this key."""

    async def delete(self, key: ObjectKey) -> Outcome:
        """Remove it: DONE, or MISSING where there was none.  Never called for a pinned object."""
        return Outcome.REJECTED

    async def discard(self, key: ObjectKey, outcome: Outcome) -> bool:
        """What was loaded under this key is DAMAGED or FOREIGN.  True: nothing is in the way of a new object now.

        Until it has returned True, the key is neither offered nor stored again in the life of this adapter; the next
        rejection or store of the key asks again."""
        return outcome is Outcome.DAMAGED and await self.delete(key) in (Outcome.DONE, Outcome.MISSING)

    async def stopped(self) -> None:
        """Called once, on the loop, after `close`, when no operation runs any more.  Close the client here, within
        what is left of the deadline, or a moment."""

    async def __stopped(self) -> None:
        try:
            await self.stopped()
        finally:
            self.__threads.close()
