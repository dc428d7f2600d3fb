"""How many requests are under way at once, as the store allows: additive increase, multiplicative decrease.

The rule is that of TCP's congestion control (Chiu and Jain, "Analysis of the Increase and Decrease Algorithms for
Congestion Avoidance in Computer Networks", 1989): one more for each round without a complaint, half for a complaint.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Final

from lmcache_core import Clock

CUT_SECONDS: Final = 0.5
"""Complaints so close to each other are about the same load, and halve it once."""
PAUSE_SECONDS: Final = 0.2
PAUSE_SECONDS_MAX: Final = 5.0


class Pace:
    """One event loop, but `limit` and `cuts` may be read from any thread."""

    def __init__(self, limit_max: int, clock: Clock) -> None:
        self._max: Final = limit_max
        self._clock: Final = clock
        self._limit = float(limit_max)
        self._busy = 0
        self._waiting: Final = deque[asyncio.Future[None]]()
        self._cut_at = float("-inf")
        self._random: Final = Random()
        self.cuts = 0

    @property
    def limit(self) -> int:
        return int(self._limit)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """One of the requests that may be under way.  In the order of asking."""
        if self._busy >= self.limit or self._waiting:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            self._wake()
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._leave()  # it had its place already
                else:
                    self._waiting.remove(turn)
                raise
        else:
            self._busy += 1
        try:
            yield
        finally:
            self._leave()

    def went_well(self) -> None:
        """The store answered without a complaint."""
        if self._limit < self._max:
            self._limit = min(self._limit + 1 / self._limit, self._max)
            self._wake()

    def complained(self, times: int) -> float:
        """The store wants less, the `times`th time about this request.  Seconds to wait before asking again."""
        now = self._clock.monotonic()
        if now - self._cut_at >= CUT_SECONDS:
            self._cut_at = now
            self._limit = max(self._limit / 2, 1.0)
            self.cuts += 1
        return self._random.uniform(0.5, 1.0) * min(PAUSE_SECONDS * 2.0 ** min(times - 1, 30), PAUSE_SECONDS_MAX)

    def _leave(self) -> None:
        self._busy -= 1
        self._wake()

    def _wake(self) -> None:
        while self._waiting and self._busy < self.limit:
            turn = self._waiting.popleft()
            if not turn.done():
                self._busy += 1
                turn.set_result(None)
