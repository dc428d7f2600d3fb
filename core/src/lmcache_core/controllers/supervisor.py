"""Runs the server's threads, and says when one is down."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from lmcache_core.contracts.conditions import Condition, Severity
from lmcache_core.model.error_message import error_message

logger = logging.getLogger(__name__)

BACKOFF_FIRST_SECONDS = 0.05
BACKOFF_MAX_SECONDS = 5.0
BACKOFF_FORGOTTEN_SECONDS = 60.0
"""A charge that ran for so long is started again at once, whatever it had done before."""


@dataclass(slots=True)
class _Charge:
    thread: threading.Thread | None = None
    down: bool = False
    ended: bool = False
    """It has done what it was there for."""
    dismissed: bool = False
    restarts: int = 0
    last_error: str = ""


class Supervisor:
    """Each charge is a function that runs until it is told to stop.  One that raises is logged with its stack, counted,
    and started again after a pause that doubles; the server is unhealthy meanwhile.  Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held to replace the table, not to look at it
        self._charges: Mapping[str, _Charge] = {}
        self._stopping = threading.Event()

    def start(self, name: str, run: Callable[[], None]) -> None:
        """A charge of the same name must have been dismissed."""
        charge = _Charge()
        charge.thread = threading.Thread(target=self._keep_running, args=(name, charge, run), name=name, daemon=True)
        with self._lock:
            self._charges = {**self._charges, name: charge}
        charge.thread.start()

    def dismiss(self, name: str, timeout_seconds: float) -> bool:
        """A charge that was told to end is not started again, nor known any more.  False when it has not ended after this
        time: its thread is left behind."""
        with self._lock:
            charge = self._charges.get(name)
            self._charges = {other: kept for other, kept in self._charges.items() if other != name}
        if charge is None or charge.thread is None:
            return True
        charge.dismissed = True
        if charge.thread is not threading.current_thread():
            charge.thread.join(timeout_seconds)
        return not charge.thread.is_alive()

    def stopping(self) -> None:
        """From now on a charge that ends is not started again."""
        self._stopping.set()

    def join(self, timeout_seconds: float) -> list[str]:
        """Wait for all charges together.  Returns the names of those that did not end in time."""
        self._stopping.set()
        threads = {name: charge.thread for name, charge in self._charges.items() if charge.thread is not None}
        deadline = time.monotonic() + timeout_seconds
        for thread in threads.values():
            thread.join(max(0.0, deadline - time.monotonic()))
        return [name for name, thread in threads.items() if thread.is_alive()]

    def conditions(self) -> Iterator[Condition]:
        """Which threads are down, and why."""
        for name, charge in self._charges.items():
            if charge.down:
                yield Condition(
                    "thread_down",
                    Severity.CRITICAL,
                    f"it is down: {charge.last_error}",
                    "it is started again by itself; the log has its stack, report it",
                    f"thread {name}",
                )

    def restarts(self) -> dict[str, int]:
        """How often each thread has failed."""
        return {name: charge.restarts for name, charge in self._charges.items()}

    def is_down(self, name: str) -> bool:
        """It failed and does not run again yet."""
        charge = self._charges.get(name)
        return charge is not None and charge.down

    @property
    def down(self) -> int:
        """Threads that failed and do not run again yet."""
        return sum(charge.down for charge in self._charges.values())

    def status(self) -> dict[str, object]:
        return {
            name: {
                "running": not (charge.down or charge.ended),
                "restarts": charge.restarts,
                "last_error": charge.last_error,
            }
            for name, charge in self._charges.items()
        }

    def _keep_running(self, name: str, charge: _Charge, run: Callable[[], None]) -> None:
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
                charge.last_error = f"{type(error).__name__}: {error_message(error)}"
                logger.exception("thread failed name=%s restarts=%d retry_seconds=%.2f", name, charge.restarts, pause)
            else:
                charge.ended = True
                return
            if self._stopping.wait(pause) or charge.dismissed:
                return
            pause = min(pause * 2, BACKOFF_MAX_SECONDS)
            charge.down = False
