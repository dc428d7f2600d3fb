"""A line on a terminal that says how far something has got, and is gone when it is over."""

from __future__ import annotations

from typing import Final, TextIO

_CLEAR: Final = "\r\x1b[K"


class ProgressLine:
    """Writes nothing where the stream is no terminal.  One thread."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream if stream.isatty() else None

    def show(self, text: str) -> None:
        self._write(_CLEAR + text)

    def clear(self) -> None:
        """Before anything else is printed, and at the end."""
        self._write(_CLEAR)

    def _write(self, text: str) -> None:
        if self._stream is not None:
            self._stream.write(text)
            self._stream.flush()
