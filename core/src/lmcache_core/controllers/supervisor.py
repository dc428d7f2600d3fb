"""Runs the server's threads, and says when one is down."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

logger = logging.getLogger(__name__)

BACKOFF_FIRST_SECONDS = 0.05
BACKOFF_MAX_SECONDS = 5.0
BACKOFF_FORGOTTEN_SECONDS = 60.0
"""A charge that ran for so long is started again at once, whatever it had done before."""


@dataclass(slots=True)
class _Charge:
    thread: threading.Thread
    down: bool = False
    ended: bool = False
    """It has done what it was there for."""
    restarts: int = 0
    last_error: str = ""


class Supervisor:
    """Each charge is a function that runs until it is told to stop.  One that raises is logged with its stack, counted,
    and started again after a pause that doubles; the server is unhealthy meanwhile."""

    def __init__(self) -> None:
        self._charges: dict[str, _Charge] = {}
        self._stopping = threading.Event()

    def start(self, name: str, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=self._keep_running, args=(name, run), name=name, daemon=True)
        self._charges[name] = _Charge(thread)
        thread.start()

    def stopping(self) -> None:
        """From now on a charge that ends is not started again."""
        self._stopping.set()

    def join(self, timeout_seconds: float) -> list[str]:
        """Wait for all charges.  Returns the names of those that did not end in time."""
        self._stopping.set()
        for charge in self._charges.values():
            charge.thread.join(timeout_seconds)
        return [name for name, charge in self._charges.items() if charge.thread.is_alive()]

    def health(self) -> tuple[bool, str]:
        """(True, "") or False and which threads are down, and why."""
        down = [f"{name} is down: {charge.last_error}" for name, charge in self._charges.items() if charge.down]
        return not down, "; ".join(down)

    def status(self) -> dict[str, object]:
        return {
            name: {
                "running": not (charge.down or charge.ended),
                "restarts": charge.restarts,
                "last_error": charge.last_error,
            }
            for name, charge in self._charges.items()
        }

    def _keep_running(self, name: str, run: Callable[[], None]) -> None:
        charge = self._charges[name]
        pause = BACKOFF_FIRST_SECONDS
        while True:
            begun = time.monotonic()
            try:
                run()
            except BaseException as error:  # SystemExit too: a plugin's code may raise it
                charge.down = True
                charge.restarts += 1
                if time.monotonic() - begun > BACKOFF_FORGOTTEN_SECONDS:
                    pause = BACKOFF_FIRST_SECONDS
                charge.last_error = f"{type(error).__name__}: {error}"
                logger.exception("thread failed name=%s restarts=%d retry_seconds=%.2f", name, charge.restarts, pause)
            else:
                charge.ended = True
                return
            if self._stopping.wait(pause):
                return
            pause = min(pause * 2, BACKOFF_MAX_SECONDS)
            charge.down = False
