"""Lines that say how far a long run is."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

TICK_SECONDS = 10.0


class Progress:
    """Prints lines that begin with the seconds since it was made."""

    def __init__(self) -> None:
        self._begin = time.monotonic()

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._begin:4.0f} s] {text}", flush=True)

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Say what is waited for, and again from time to time while the block runs."""
        over = threading.Event()

        def remind() -> None:
            while not over.wait(TICK_SECONDS):
                self.say(f"... still: {text}")

        self.say(text)
        reminder = threading.Thread(target=remind, daemon=True)
        reminder.start()
        try:
            yield
        finally:
            over.set()
            reminder.join()
