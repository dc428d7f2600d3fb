"""What is to be answered at a time, unless it has been answered before."""

from __future__ import annotations

import heapq
import math
from typing import Final, NamedTuple, Protocol

from lmcache_client.codec import Frame

TIMERS_SWEPT: Final = 256
"""Timers beyond which those of answered calls are looked for."""


class Waiting(Protocol):
    @property
    def is_answered(self) -> bool: ...

    def answer(self, result: tuple[Frame, ...]) -> bool: ...


class Timer(NamedTuple):
    """Ordered by deadline, then by `order`, which no two share."""

    deadline: float
    order: int
    call: Waiting
    fallback: tuple[Frame, ...]


class Timers:
    """Not synchronised."""

    def __init__(self) -> None:
        self._heap: list[Timer] = []
        self._swept = TIMERS_SWEPT

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_deadline(self) -> float:
        """Infinite without a timer."""
        return self._heap[0].deadline if self._heap else math.inf

    def add(self, timer: Timer) -> None:
        heapq.heappush(self._heap, timer)
        if len(self._heap) >= self._swept:
            # Calls are mostly answered long before their time; what is left of them must not pile up.
            self._heap = [waiting for waiting in self._heap if not waiting.call.is_answered]
            heapq.heapify(self._heap)
            self._swept = max(TIMERS_SWEPT, 2 * len(self._heap))

    def fire(self, now: float) -> None:
        """Answer what is due with its fallback."""
        while self._heap and self._heap[0].deadline <= now:
            timer = heapq.heappop(self._heap)
            timer.call.answer(timer.fallback)
