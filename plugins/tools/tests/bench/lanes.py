"""TaskQueue that tests move objects with, without a thread of their own."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from lmcache_core.contracts.l1_memory import MemoryRegion
from lmcache_core.model.keys import ObjectKey
from lmcache_devkit.borrowed_memory import BorrowedMemory
from lmcache_tools.bench.lane import Ended, Step, Verb

Move = Callable[[Step, dict[ObjectKey, bytes]], str | None]


def whole(step: Step, kept: dict[ObjectKey, bytes]) -> str | None:
    """Keeps and brings back every byte."""
    if step.verb is Verb.STORE:
        kept[step.key] = bytes(step.buffer.view)
    else:
        step.buffer.view[:] = kept[step.key]
    return None


class DeskLane:
    """Does each step at once, and says so when it is asked, one step at a time, the last one first."""

    name = "desk"

    def __init__(self, move: Move = whole) -> None:
        self.kept: dict[ObjectKey, bytes] = {}
        self.most = 0
        """Steps that were on their way at once."""
        self.order: list[int] = []
        self._move = move
        self._done: deque[Ended] = deque()
        self._event = os.eventfd(0)

    def start(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self.order.append(step.token)
            self._done.append(Ended(step.token, self._move(step, self.kept)))
            os.eventfd_write(self._event, 1)
        self.most = max(self.most, len(self._done))

    def fileno(self) -> int:
        return self._event

    def ended(self) -> Sequence[Ended]:
        os.eventfd_read(self._event)
        last = self._done.pop()
        if self._done:
            os.eventfd_write(self._event, 1)
        return [last]

    def clear(self) -> None:
        self.kept.clear()

    def close(self) -> None:
        os.close(self._event)


@contextmanager
def desk_lane(move: Move = whole) -> Iterator[DeskLane]:
    lane = DeskLane(move)
    try:
        yield lane
    finally:
        lane.close()


def region(size: int) -> MemoryRegion:
    return BorrowedMemory(size).region
