"""Makes one call of many that come at about the same time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Waiting(NamedTuple, Generic[Item, Result]):
    item: Item
    ended: asyncio.Future[Result]


class CallSlots:
    """How many batches run at a time, and whose turn it is.  Belongs to one event loop."""

    def __init__(self, count: int) -> None:
        self.free = count
        self._lanes: Final[list[BatchCalls[object, object]]] = []
        self._starting = False

    def add(self, lane: BatchCalls[object, object]) -> None:
        """Lanes that were added earlier go first."""
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
    """Calls `run` with what waits, shared out over the free slots, `batch_max` at most at once, and no fewer than `batch_min`
    where there are so many.  Belongs to one event loop.

    An item whose call is cancelled before its batch has begun is left out.  Later, the cancellation passes when the batch has
    ended: until then its memory is in use."""

    def __init__(
        self,
        slots: CallSlots,
        run: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]],
        batch_max: int,
        batch_min: int = 1,
    ) -> None:
        self._slots: Final = slots
        self._run: Final = run
        self._batch_max: Final = batch_max
        self._batch_min: Final = batch_min
        self._waiting: Final[deque[_Waiting[Item, Result]]] = deque()
        self._running: Final[set[asyncio.Task[None]]] = set()  # a loop alone does not keep its tasks
        slots.add(self)  # type: ignore[arg-type]  # slots never look at items

    async def call(self, item: Item) -> Result:
        """The result of this item.  Raises what `run` raised for its batch."""
        waiting = _Waiting[Item, Result](item, asyncio.get_running_loop().create_future())
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
        """Begin a batch in a free slot.  False: nothing waits."""
        if not self._waiting:
            return False
        share = max(-(-len(self._waiting) // self._slots.free), self._batch_min)
        share = min(share, self._batch_max, len(self._waiting))
        batch = [self._waiting.popleft() for _ in range(share)]
        self._slots.free -= 1
        task = asyncio.get_running_loop().create_task(self._run_batch(batch))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return True

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
            self._slots.wake()
