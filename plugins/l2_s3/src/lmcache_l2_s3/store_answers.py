"""Asks a store for one thing until it is an answer: paced where the store complains, counted, and distinguished from faults."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from lmcache_core import Clock
from lmcache_l2_s3.answers import Answer, Reply, S3Error
from lmcache_l2_s3.pace import Pace

REFUSALS_MAX: Final = 8
"""This number of refusals in a row is about the server and not about single objects."""


class StoreAnswers:
    """One event loop, but `counters` may be read from any thread."""

    def __init__(self, adapter: str, limit_max: int, clock: Clock) -> None:
        self._adapter: Final = adapter
        self._pace: Final = Pace(limit_max, clock)
        self._lock: Final = threading.Lock()  # guards the one below against readers
        self._seen: Final = Counter[str]()
        self._refusals = 0

    async def ask(self, action: str, send: Callable[[], Awaitable[Reply]], *answers: Answer) -> Reply:
        """Call `send` until what comes is OK, or one of these answers.  Raises S3Error for any other.

        What is THROTTLED is asked again, at a slower pace, for as long as the caller is not cancelled.  REFUSED is an
        answer as long as others get another one; a store that refuses everything is a fault."""
        times = 0
        while True:
            async with self._pace.place():
                reply = await send()
            self._count(reply)
            if reply.answer is not Answer.THROTTLED:
                break
            times += 1
            await asyncio.sleep(self._pace.complained(times))
        self._pace.went_well()
        if reply.answer is Answer.REFUSED:
            self._refusals += 1
            if self._refusals < REFUSALS_MAX and Answer.REFUSED in answers:
                return reply
        elif reply.status is not None or reply.answer is Answer.OK:
            self._refusals = 0
        if reply.answer is Answer.OK or (reply.answer in answers and reply.answer is not Answer.REFUSED):
            return reply
        raise S3Error(self._adapter, action, reply.answer, reply.status, reply.detail)

    def counters(self) -> Mapping[str, int]:
        """`answers_...` by what they mean, and how often and how far the store made this slow down."""
        with self._lock:
            seen = {f"answers_{label}": count for label, count in self._seen.items()}
        return {**seen, "slowed_down": self._pace.cuts, "in_flight_limit": self._pace.limit}

    def _count(self, reply: Reply) -> None:
        with self._lock:
            self._seen[reply.answer.value] += 1
