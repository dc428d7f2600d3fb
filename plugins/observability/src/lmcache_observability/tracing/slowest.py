"""The slowest requests of a time window, in memory that does not grow with their number."""

from __future__ import annotations

from dataclasses import dataclass

from lmcache_observability.tracing.steps import Step


@dataclass(slots=True)
class SlowRequest:
    request_id: str
    trace_id: int
    model_name: str
    cache_salt: str
    """As it may be shown."""
    ended: float
    """Seconds since the epoch."""
    seconds: float
    """How long its engine waited for the server."""
    steps: list[Step]
    incomplete: bool = False
    """Its end was never heard of."""


class SlowestRequests:
    """Two generations, each of at most a window: the older one goes as a whole, and `list` leaves out what has become too
    old meanwhile.  One thread writes, any may read `list`."""

    def __init__(self, requests_max: int, window_seconds: float) -> None:
        self._most = requests_max
        self._window = window_seconds
        self._kept: tuple[dict[int, SlowRequest], dict[int, SlowRequest]] = ({}, {})
        """The older generation and the younger; readers see a tuple and dicts that never change."""
        self._turned = float("-inf")
        self._least = 0.0
        self._number = 0

    def is_slow(self, seconds: float, at: float) -> bool:
        """Would a request of this length that ends now be kept?"""
        if not -self._window <= at - self._turned <= self._window:  # the clock may have been put back
            self._turn(at)
        return seconds > self._least or len(self._kept[1]) < self._most

    def add(self, request: SlowRequest) -> int:
        """Returns its number, from 1 on: engines may call many requests alike."""
        self._number += 1
        old, young = self._kept
        young = {**young, self._number: request}
        if len(young) > self._most:
            del young[min(young, key=lambda each: young[each].seconds)]
        self._kept = (old, young)
        if len(young) == self._most:
            self._least = min(each.seconds for each in young.values())
        return self._number

    def find(self, number: int) -> SlowRequest | None:
        old, young = self._kept
        return young.get(number) or old.get(number)

    def list(self, limit: int, now: float) -> list[SlowRequest]:
        """Those of the window that ends `now`, the slowest first.  Of more slow ones than are kept, the fastest are
        missing."""
        fresh = [each for kept in self._kept for each in kept.values() if abs(now - each.ended) <= self._window]
        return sorted(fresh, key=lambda each: -each.seconds)[: min(limit, self._most)]

    def _turn(self, at: float) -> None:
        self._kept = (self._kept[1], {})
        self._turned, self._least = at, 0.0
