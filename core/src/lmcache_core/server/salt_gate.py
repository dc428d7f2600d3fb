"""Which requests are served at all, by their cache salt."""

from __future__ import annotations

import logging
import threading
from typing import Final

from lmcache_core.contracts.clock import Clock

logger = logging.getLogger(__name__)

LOG_SECONDS: Final = 60.0
"""At most one line about refused requests in this time."""


class SaltGate:
    """With `reject_unsalted`, requests without a cache salt are refused, counted, and logged now and then.  Any thread."""

    def __init__(self, reject_unsalted: bool, clock: Clock) -> None:
        self.reject_unsalted = reject_unsalted
        """May be set at any time, for what comes from then on."""
        self._clock = clock
        self._lock = threading.Lock()
        self._logged: float | None = None
        self.refused = 0
        """Operations since the start; one request of an engine is several."""

    def admits(self, cache_salt: str) -> bool:
        """As `ModuleContext.admits_salt`."""
        if cache_salt or not self.reject_unsalted:
            return True
        with self._lock:
            self.refused += 1
            refused, now = self.refused, self._clock.monotonic()
            is_due = self._logged is None or now - self._logged >= LOG_SECONDS
            if is_due:
                self._logged = now
        if is_due:
            logger.warning(
                "operations without a cache salt are refused, their engines run uncached refused=%d; "
                "give requests a salt, or leave out --reject-unsalted",
                refused,
            )
        return False
