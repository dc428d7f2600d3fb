"""Turns the output of a program into log lines of bounded length and number."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

LINE_BYTES_MAX: Final = 2000
LINES_PER_SECOND: Final = 20.0
LINES_AT_ONCE: Final = 200.0
_CUT: Final = " ... (cut)"


class OutputLog:
    """One thread."""

    def __init__(self, write: Callable[[str], None], now: Callable[[], float] = time.monotonic) -> None:
        """`write` is called with each line, which has no control characters."""
        self._write, self._now = write, now
        self._started = b""
        """The beginning of a line that has not ended."""
        self._is_cut = False
        """That line is longer than what is kept of it."""
        self._credit, self._counted_at = LINES_AT_ONCE, now()
        self.dropped_lines = 0
        self._unreported_drops = 0
        self._last_left_out = b""

    def feed(self, data: bytes) -> None:
        started, *more = data.split(b"\n")
        self._append(started)
        if not more:
            return
        self._end_line()
        lines = list(filter(bytes.strip, more[:-1]))
        for index, line in enumerate(lines):
            self._append(line)
            if not self._end_line():
                self._leave_out(lines[index + 1 :])  # at once: there may be thousands
                break
        self._append(more[-1])

    def end(self) -> None:
        """End of the output.  The last line is written in any case: it often gives the reason."""
        if self._started:
            self._end_line()
        if self._unreported_drops:
            self._report_drops()
            self._write(_printable(self._last_left_out))

    def _append(self, piece: bytes) -> None:
        space = LINE_BYTES_MAX - len(self._started)
        self._is_cut |= len(piece) > space
        self._started += piece[:space]

    def _end_line(self) -> bool:
        """False when the line was left out; lines that were read at the same time will be, too."""
        line, was_cut = self._started, self._is_cut
        self._started, self._is_cut = b"", False
        if not line.strip():
            return True
        now = self._now()
        self._credit = min(self._credit + (now - self._counted_at) * LINES_PER_SECOND, LINES_AT_ONCE)
        self._counted_at = now
        # one report of what was left out covers several lines
        if self._credit < (LINES_PER_SECOND if self._unreported_drops else 1):
            self._leave_out([line])
            return False
        self._report_drops()
        self._credit -= 1
        self._write(_printable(line) + (_CUT if was_cut else ""))
        return True

    def _leave_out(self, lines: Sequence[bytes]) -> None:
        self.dropped_lines += len(lines)
        self._unreported_drops += len(lines)
        if lines:
            self._last_left_out = lines[-1][:LINE_BYTES_MAX]

    def _report_drops(self) -> None:
        if self._unreported_drops:
            self._write(f"({self._unreported_drops} lines were left out: more than {LINES_PER_SECOND:.0f} per second)")
            self._unreported_drops = 0


def _printable(line: bytes) -> str:
    text = line.rstrip().decode(errors="replace")
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
