"""Which task is next: urgent ones, but not for ever."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, Generic, TypeVar

Task = TypeVar("Task")

URGENT_RUN_MAX: Final = 16
"""So many urgent tasks are taken in a row while others wait; then one of the others has its turn."""


class Lanes(Generic[Task]):
    """Two queues with one outlet.  Its owner's lock guards it."""

    def __init__(self) -> None:
        self._urgent: deque[Task] = deque()
        self._others: deque[Task] = deque()
        self._urgent_run = 0

    def __len__(self) -> int:
        return len(self._urgent) + len(self._others)

    def add(self, tasks: Iterable[Task]) -> None:
        self._others.extend(tasks)

    def add_urgent(self, tasks: Iterable[Task]) -> None:
        self._urgent.extend(tasks)

    def take(self) -> Task | None:
        """The next task, or None when there is none."""
        if self._urgent and (self._urgent_run < URGENT_RUN_MAX or not self._others):
            self._urgent_run += 1
            return self._urgent.popleft()
        self._urgent_run = 0
        return self._others.popleft() if self._others else None

    def clear(self) -> list[Task]:
        """Everything that waits, no longer waiting."""
        waiting = [*self._urgent, *self._others]
        self._urgent.clear()
        self._others.clear()
        return waiting
