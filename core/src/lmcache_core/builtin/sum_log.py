"""Log lines about what may happen many times a second: one for each kind, and then one for each period with the sums."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

PERIOD_SECONDS: Final = 10.0
KINDS_MAX: Final = 256
"""Kinds that are summed apart; when more come, what was summed is said, and summing begins anew."""

Kind = tuple[str, ...]


@dataclass(slots=True)
class _Sums:
    due: float
    amounts: list[int]


class SumLog:
    """The first of a kind is written when it has waited for `wait_seconds` for others; then there is one line per period, with
    the sums of all that came since the last.  One thread."""

    def __init__(
        self,
        write: Callable[[Kind, Sequence[int]], None],
        now: Callable[[], float] = time.monotonic,
        wait_seconds: float = 0.0,
    ) -> None:
        self._write = write
        self._now = now
        self._wait_seconds = wait_seconds
        self._sums: dict[Kind, _Sums] = {}

    def note(self, kind: Kind, *amounts: int) -> None:
        """Of one kind there are always equally many amounts."""
        if kind not in self._sums and len(self._sums) >= KINDS_MAX:
            self.flush()
        now = self._now()
        sums = self._sums.setdefault(kind, _Sums(now, [0] * len(amounts)))
        if not any(sums.amounts):
            sums.due = max(sums.due, now + self._wait_seconds)
        for index, amount in enumerate(amounts):
            sums.amounts[index] += amount
        self._write_due(kind, sums, now)

    def write_due(self) -> None:
        """Say what has waited for a period."""
        now = self._now()
        for kind, sums in self._sums.items():
            if any(sums.amounts):
                self._write_due(kind, sums, now)

    def flush(self) -> None:
        """Say what was not said yet."""
        for kind, sums in self._sums.items():
            if any(sums.amounts):
                self._write(kind, sums.amounts)
        self._sums.clear()

    def _write_due(self, kind: Kind, sums: _Sums, now: float) -> None:
        if now >= sums.due:
            self._write(kind, sums.amounts)
            sums.due, sums.amounts = now + PERIOD_SECONDS, [0] * len(sums.amounts)
