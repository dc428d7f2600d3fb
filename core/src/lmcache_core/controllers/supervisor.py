"""Supervised threads: one that fails is started again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from lmcache_core.contracts.conditions import Condition, Severity
from lmcache_core.model.errors import error_message

logger = logging.getLogger(__name__)


BACKOFF_FIRST_SECONDS = 0.05
BACKOFF_MAX_SECONDS = 5.0
BACKOFF_FORGOTTEN_SECONDS = 60.0
"""A thread that ran longer than this is started again at once, whatever its earlier failures."""


@dataclass(slots=True)
class SupervisedThread:
    """Written by the thread itself; others may look."""

    thread: threading.Thread | None = None
    down: bool = False
    """It failed and does not run again yet."""
    ended: bool = False
    """Its function has returned."""
    dismissed: bool = False
    restarts: int = 0
    """Failures since the start."""
    last_error: str = ""


class Supervisor:
    """Each supervised thread runs a function until it returns.  One that raises is logged with its stack, counted,
    and started again after a pause that doubles; the server is unhealthy meanwhile.  Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held to replace the table, not to look at it
        self.threads: Mapping[str, SupervisedThread] = {}
        """By name.  Replaced as a whole."""
        self._stopping = threading.Event()

    def start(self, name: str, run: Callable[[], None]) -> None:
        """Start a supervised thread.  One of the same name must have been dismissed before."""
        entry = SupervisedThread()
        entry.thread = threading.Thread(target=self._keep_running, args=(name, entry, run), name=name, daemon=True)
        with self._lock:
            self.threads = {**self.threads, name: entry}
        entry.thread.start()

    def dismiss(self, name: str, timeout_seconds: float) -> bool:
        """Forget a thread that was asked to stop; it is not started again.  False when it has not ended after this
        time: its thread is left behind."""
        with self._lock:
            entry = self.threads.get(name)
            self.threads = {other: kept for other, kept in self.threads.items() if other != name}
        if entry is None or entry.thread is None:
            return True
        entry.dismissed = True
        if entry.thread is not threading.current_thread():
            entry.thread.join(timeout_seconds)
        return not entry.thread.is_alive()

    def join(self, timeout_seconds: float) -> list[str]:
        """Wait for all threads together; one that fails is not started again.  Returns the names of those that did not end in
        time."""
        self._stopping.set()
        threads = {name: entry.thread for name, entry in self.threads.items() if entry.thread is not None}
        deadline = time.monotonic() + timeout_seconds
        for thread in threads.values():
            thread.join(max(0.0, deadline - time.monotonic()))
        return [name for name, thread in threads.items() if thread.is_alive()]

    def conditions(self) -> Iterator[Condition]:
        """Which threads are down, and why."""
        for name, entry in self.threads.items():
            if entry.down:
                yield Condition(
                    "thread_down",
                    Severity.CRITICAL,
                    f"it is down: {entry.last_error}",
                    "it is started again by itself; the log has its stack, report it",
                    f"thread {name}",
                )

    def status(self) -> dict[str, object]:
        return {
            name: {
                "running": not (entry.down or entry.ended),
                "restarts": entry.restarts,
                "last_error": entry.last_error,
            }
            for name, entry in self.threads.items()
        }

    def _keep_running(self, name: str, entry: SupervisedThread, run: Callable[[], None]) -> None:
        pause = BACKOFF_FIRST_SECONDS
        while True:
            started = time.monotonic()
            try:
                run()
            except BaseException as error:  # SystemExit too: a plugin's code may raise it
                entry.down = True
                entry.restarts += 1
                if time.monotonic() - started > BACKOFF_FORGOTTEN_SECONDS:
                    pause = BACKOFF_FIRST_SECONDS
                entry.last_error = f"{type(error).__name__}: {error_message(error)}"
                logger.exception("thread failed name=%s restarts=%d retry_seconds=%.2f", name, entry.restarts, pause)
            else:
                entry.ended = True
                return
            if self._stopping.wait(pause) or entry.dismissed:
                return
            pause = min(pause * 2, BACKOFF_MAX_SECONDS)
            entry.down = False
