"""How many requests may get spans, so that a busy server spends a bounded part of its time on them."""

from __future__ import annotations


class SpanBudget:
    """A second's worth may be used at once.  Time is that of the events, so that a late delivery changes nothing."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._most = max(1.0, per_second)
        self._left = self._most
        self._at = float("-inf")

    def has_room(self, at: float) -> bool:
        if at > self._at:
            self._left = min(self._most, self._left + (at - self._at) * self._per_second)
            self._at = at
        return self._left >= 1

    def take(self) -> None:
        """One, where there is room."""
        self._left -= 1
