"""Says on a terminal that something takes its time."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from lmcache_core.app.console.progress_line import ProgressLine

PATIENCE_SECONDS: Final = 1.0
"""A wait shorter than this shows nothing."""


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """A line on standard error, if that is a terminal, from when the body has taken a second until it ends.  One at
    a time."""
    if not sys.stderr.isatty():
        yield
        return
    line = ProgressLine(sys.stderr)
    lock = threading.Lock()
    over = False

    def show() -> None:
        with lock:
            if not over:
                line.show(text)

    timer = threading.Timer(PATIENCE_SECONDS, show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with lock:
            over = True
            line.clear()
