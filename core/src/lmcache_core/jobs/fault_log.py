"""Rate-limited log of faults."""

from __future__ import annotations

import logging
import threading
from typing import Final

from lmcache_core.contracts.clock import Clock

QUIET_SECONDS: Final = 10.0
"""After a line, the next one is written this much later at the earliest, and says how many were left out."""


class FaultLog:
    """Rate-limited lines about one source of faults; `subject` is appended to each.  Any thread."""

    def __init__(self, logger: logging.Logger, clock: Clock, subject: str) -> None:
        self._logger = logger
        self._clock = clock
        self._subject = subject
        self._lock = threading.Lock()
        self._next = float("-inf")
        self._left_out = 0

    def exception(self, message: str) -> None:
        """Log the exception that is being handled, with its stack."""
        self._log(logging.ERROR, message, stack=True)

    def error(self, message: str) -> None:
        self._log(logging.ERROR, message, stack=False)

    def warning(self, message: str, *values: object) -> None:
        """`values` fill the message as `%` does, and only where the line is written."""
        self._log(logging.WARNING, message, *values, stack=False)

    def _log(self, level: int, message: str, *values: object, stack: bool) -> None:
        with self._lock:
            now = self._clock.monotonic()
            if now < self._next:
                self._left_out += 1
                return
            self._next = now + QUIET_SECONDS
            left_out, self._left_out = self._left_out, 0
        message = message % values if values else message
        self._logger.log(level, "%s %s others_not_logged=%d", message, self._subject, left_out, exc_info=stack)
