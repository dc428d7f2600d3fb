"""Says on a terminal that something takes its time."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

PATIENCE_SECONDS: Final = 1.0
"""A wait shorter than this shows nothing."""
_CLEAR: Final = "\r\x1b[K"


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """A line on standard error, if that is a terminal, from when the body has taken a second until it ends.  One at
    a time."""
    stream = sys.stderr
    if not stream.isatty():
        yield
        return
    lock = threading.Lock()
    over = shown = False

    def show() -> None:
        nonlocal shown
        with lock:
            if not over:
                stream.write(_CLEAR + text)
                stream.flush()
                shown = True

    timer = threading.Timer(PATIENCE_SECONDS, show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with lock:
            over = True
            if shown:
                stream.write(_CLEAR)
                stream.flush()
