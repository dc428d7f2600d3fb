"""What the serdes of one adapter have done, counted exactly."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Direction = Literal["encode", "decode"]
Refusal = Literal["too_large", "unknown_layout", "other_chain"]


@dataclass(slots=True)
class SerdeRow:
    """One serde in one direction.  Bytes and seconds are those of objects that it was through with."""

    objects: int = 0
    input_bytes: int = 0
    output_bytes: int = 0
    seconds: float = 0.0
    """All threads together: `input_bytes / seconds` is what one of them does."""
    failures: int = 0


class SerdeTally:
    """Safe from any thread."""

    def __init__(self, names: Sequence[str]) -> None:
        self._lock = threading.Lock()  # guards the two below
        directions: tuple[Direction, ...] = ("encode", "decode")
        self._rows = {(name, direction): SerdeRow() for name in names for direction in directions}
        self._refused: Counter[Refusal] = Counter()

    def done(self, name: str, direction: Direction, input_bytes: int, output_bytes: int, seconds: float) -> None:
        with self._lock:
            row = self._rows[name, direction]
            row.objects += 1
            row.input_bytes += input_bytes
            row.output_bytes += output_bytes
            row.seconds += seconds

    def failed(self, name: str, direction: Direction) -> None:
        with self._lock:
            self._rows[name, direction].failures += 1

    def refused(self, why: Refusal) -> None:
        """No serde was asked."""
        with self._lock:
            self._refused[why] += 1

    def rows(self) -> Mapping[tuple[str, Direction], SerdeRow]:
        with self._lock:
            return {key: replace(row) for key, row in self._rows.items()}

    def refusals(self) -> Mapping[Refusal, int]:
        with self._lock:
            return dict(self._refused)
