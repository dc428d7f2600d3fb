"""How far it is, on standard error: a bar on a terminal, a line per replay elsewhere."""

from __future__ import annotations

import time
from typing import Final, Protocol, TextIO

SLICE: Final = 4096
"""Requests between two reports of a replay."""
_BAR: Final = 30
_REDRAW_SECONDS: Final = 0.1


class Progress(Protocol):
    """Called by one thread."""

    def at(self, label: str, done: float) -> None:
        """`done` replays of all of them are over; `label` is the one that is running."""

    def finished(self, label: str, line: str) -> None:
        """The replay `label` is over; `line` says how it went."""

    def close(self) -> None:
        """No more is to come."""


class Silent:
    def at(self, label: str, done: float) -> None: ...

    def finished(self, label: str, line: str) -> None: ...

    def close(self) -> None: ...


class Lines:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def at(self, label: str, done: float) -> None: ...

    def finished(self, label: str, line: str) -> None:
        print(f"{label}: {line}", file=self._stream, flush=True)

    def close(self) -> None: ...


class Bar:
    """One line that is drawn over again, at most ten times a second, and wiped at the end."""

    def __init__(self, stream: TextIO, total: int) -> None:
        self._stream = stream
        self._total = max(1, total)
        self._started = time.monotonic()
        self._drawn = 0.0

    def at(self, label: str, done: float) -> None:
        now = time.monotonic()
        if now - self._drawn < _REDRAW_SECONDS:
            return
        self._drawn = now
        share = min(1.0, done / self._total)
        filled = int(share * _BAR)
        left = f"{(now - self._started) * (1 / share - 1):.0f} s left" if share > 0.02 else ""
        bar = "#" * filled + "." * (_BAR - filled)
        self._stream.write(f"\r\x1b[K[{bar}] {share:4.0%}  {label}  {left}")
        self._stream.flush()

    def finished(self, label: str, line: str) -> None: ...

    def close(self) -> None:
        self._stream.write("\r\x1b[K")
        self._stream.flush()


def progress_on(stream: TextIO, total: int, wanted: bool = True) -> Progress:
    if not wanted:
        return Silent()
    return Bar(stream, total) if stream.isatty() else Lines(stream)


def ignore_progress(requests: int) -> None:
    """Shows no progress."""
