"""How many requests were answered, and how long each took: exact, by operation and outcome."""

from __future__ import annotations

from collections.abc import Iterable

from lmcache_core.contracts.readings import Spread
from lmcache_core.jobs.durations import Durations
from lmcache_core.server.router_call import ERROR, OK, REFUSED


class AnswerTimes:
    """Not thread-safe: the owner holds a lock."""

    def __init__(self, operations: Iterable[str]) -> None:
        self._rows = {name: {outcome: Durations() for outcome in (OK, ERROR, REFUSED)} for name in operations}

    def add(self, operation: str, outcome: str, seconds: float) -> None:
        self._rows[operation][outcome].count(seconds)

    @property
    def negative(self) -> int:
        """How many were answered negatively: with an error, or refused."""
        return sum(rows[outcome].total for rows in self._rows.values() for outcome in (ERROR, REFUSED))

    def spreads(self) -> dict[tuple[str, str], Spread]:
        """By operation and outcome, those that happened."""
        return {
            (name, outcome): times.spread()
            for name, rows in self._rows.items()
            for outcome, times in rows.items()
            if times.total
        }
