"""Makes one call of many that come at about the same time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

BESIDE_SECONDS: Final = 0.1
"""How long a waiting call may wait for a running call of its kind: longer than a healthy call takes."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Waiting(NamedTuple, Generic[Item, Result]):
    item: Item
    ended: asyncio.Future[Result]
    since: float


class CallSlots:
    """How many batches run at a time, and whose turn it is.  Belongs to one event loop."""

    def __init__(self, count: int) -> None:
        self.free = count
        self._lanes: Final[list[BatchCalls[object, object]]] = []
        self._starting = False

    def add(self, lane: BatchCalls[object, object]) -> None:
        """TaskQueue that were added earlier go first."""
        self._lanes.append(lane)

    def wake(self) -> None:
        """Start what can be, once everything that is ready now has been handed in."""
        if not self._starting:
            self._starting = True
            asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        self._starting = False
        for lane in self._lanes:
            while self.free and lane.start_one():
                pass


class BatchCalls(Generic[Item, Result]):
    """Calls `run` with what waits, `batch_max` at most at once.  While one of its calls runs, another begins beside it when
    that would be full, or has waited for `beside_seconds`; what comes meanwhile is the next call.  Belongs to one event loop.

    An item whose call is cancelled before its batch has begun is left out.  Later, the cancellation passes when the batch has
    ended: until then its memory is in use."""

    def __init__(
        self,
        slots: CallSlots,
        run: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]],
        batch_max: int,
        beside_seconds: float = BESIDE_SECONDS,
    ) -> None:
        self._slots: Final = slots
        self._run: Final = run
        self._batch_max: Final = batch_max
        self._beside_seconds: Final = beside_seconds
        self._waiting: Final[deque[_Waiting[Item, Result]]] = deque()
        self._tasks: Final[set[asyncio.Task[None]]] = set()  # a loop alone does not keep its tasks
        self._running = 0
        self._alarm: asyncio.TimerHandle | None = None
        slots.add(self)  # type: ignore[arg-type]  # slots never look at items

    async def call(self, item: Item) -> Result:
        """The result of this item.  Raises what `run` raised for its batch."""
        loop = asyncio.get_running_loop()
        waiting = _Waiting[Item, Result](item, loop.create_future(), loop.time())
        self._waiting.append(waiting)
        self._slots.wake()
        cancellation: asyncio.CancelledError | None = None
        while not waiting.ended.done():
            try:
                await asyncio.wait((waiting.ended,))  # which does not cancel what it waits for
            except asyncio.CancelledError as error:
                if waiting in self._waiting:
                    self._waiting.remove(waiting)
                    raise
                cancellation = error
        try:
            if cancellation is not None:
                waiting.ended.exception()  # it was asked for, or the loop complains
                raise cancellation
            return waiting.ended.result()
        finally:
            del cancellation, waiting  # they hold this frame

    def start_one(self) -> bool:
        """Begin a batch in a free slot.  False: nothing waits, or it is better off with more of its kind."""
        if not self._waiting or not self._may_begin():
            return False
        batch = [self._waiting.popleft() for _ in range(min(self._batch_max, len(self._waiting)))]
        self._slots.free -= 1
        self._running += 1
        task = asyncio.get_running_loop().create_task(self._run_batch(batch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    def _may_begin(self) -> bool:
        if not self._running or len(self._waiting) >= self._batch_max:
            return True
        loop = asyncio.get_running_loop()
        left = self._waiting[0].since + self._beside_seconds - loop.time()
        if left <= 0:
            return True
        if self._alarm is None:
            self._alarm = loop.call_later(left, self._waited)
        return False

    def _waited(self) -> None:
        self._alarm = None
        self._slots.wake()

    async def _run_batch(self, batch: Sequence[_Waiting[Item, Result]]) -> None:
        try:
            results = await self._run([each.item for each in batch])
            for each, result in zip(batch, results, strict=True):
                each.ended.set_result(result)
        except BaseException as error:  # noqa: BLE001 - each of those who wait raises it
            fault = error if isinstance(error, Exception) else RuntimeError("the batch was cut short")
            for each in batch:
                if not each.ended.done():
                    each.ended.set_exception(fault)
        finally:
            self._slots.free += 1
            self._running -= 1
            self._slots.wake()
