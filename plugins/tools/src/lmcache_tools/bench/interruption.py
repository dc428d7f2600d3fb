"""Ctrl-C and SIGTERM as a question that is asked between two steps, so that whatever was begun can be undone."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any, Final, Self

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """The first signal is remembered; the second raises KeyboardInterrupt wherever it comes.  Main thread only."""

    def __init__(self) -> None:
        self.asked = False
        """True after a signal that asks for the end."""
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._ask) for number in _SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
