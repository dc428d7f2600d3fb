"""Says on a terminal that something takes its time."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

PATIENCE_SECONDS: Final = 1.0
"""Nobody wonders before that."""


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """A moving line on standard error, if that is a terminal, from when the body has taken a second until it ends.  One at
    a time."""
    if not sys.stderr.isatty():
        yield
        return
    shown: list[Any] = []
    lock = threading.Lock()
    over = False

    def show() -> None:
        from rich.console import Console  # only what takes long pays for it
        from rich.text import Text

        with lock:
            if not over:
                status = Console(stderr=True).status(Text(text))
                status.start()
                shown.append(status)

    timer = threading.Timer(PATIENCE_SECONDS, show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with lock:
            over = True
            for status in shown:
                status.stop()
