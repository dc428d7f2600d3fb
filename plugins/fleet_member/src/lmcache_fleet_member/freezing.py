"""What coordinators freeze: stores wait while a coordinator reads everything, for a bounded time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from lmcache_core import FreezeControl

HOLDER: Final = "coordinators"


class Freezes:
    """Of all coordinators together.  Safe from any thread."""

    def __init__(self, control: Callable[[], FreezeControl], seconds_max: float) -> None:
        self._control = control
        self._max: Final = seconds_max
        self._lock = threading.Lock()
        self._until: dict[str, float] = {}
        """By coordinator, also when it is over: until the coordinator has answered without asking for it."""

    def asked(self, coordinator: str, seconds: float) -> None:
        """Each of its answers; 0: it asks for none.  A freeze lasts no longer than the limit, from the first answer that asked
        for it on, however often it is asked for."""
        now = time.monotonic()
        with self._lock:
            before = self._until.get(coordinator)
            if seconds == 0:
                self._until.pop(coordinator, None)
            elif before is None:
                self._until[coordinator] = now + min(seconds, self._max)
            if self._until.get(coordinator) != before:
                self._apply(now)

    def end(self) -> None:
        with self._lock:
            if self._until:
                self._until.clear()
                self._control().end(HOLDER)

    def _apply(self, now: float) -> None:
        left = max(self._until.values(), default=now) - now
        if left > 0:
            self._control().begin(left, HOLDER)
        else:
            self._control().end(HOLDER)
