"""A line on a terminal that says how far something has got, and is gone when it is over."""

from __future__ import annotations

from typing import Final, TextIO

_CLEAR: Final = "\r\x1b[K"


class ProgressLine:
    """Writes nothing where the stream is not a terminal.  One thread."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream if stream.isatty() else None
        self._shown = ""

    def show(self, text: str) -> None:
        if text != self._shown:
            self._write(_CLEAR + text)
            self._shown = text

    def clear(self) -> None:
        """Before anything else is printed, and at the end."""
        if self._shown:
            self._write(_CLEAR)
            self._shown = ""

    def _write(self, text: str) -> None:
        if self._stream is not None:
            self._stream.write(text)
            self._stream.flush()
