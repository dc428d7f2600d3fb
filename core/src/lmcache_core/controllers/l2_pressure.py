"""Whether one adapter needs room, by what it says of itself."""

from __future__ import annotations

import logging

from lmcache_core.controllers.adapter_port import AdapterPort
from lmcache_core.model.results import Usage

logger = logging.getLogger(__name__)


class L2Pressure:
    """Compares usage with a watermark, cycle of eviction by cycle.  One thread.

    An adapter may count what it holds only now and then.  Who went on deleting by an old count would empty it, so after a
    cycle nothing is needed until something of that cycle shows."""

    def __init__(self, port: AdapterPort, watermark: float) -> None:
        self._port = port
        self._watermark = watermark
        self._used_before = 0
        self._stored_bytes = 0
        self._said: set[str] = set()
        self.freed_bytes = 0
        """By the cycle that began last."""

    def begin(self, usage: Usage) -> None:
        """A cycle begins, on account of this usage."""
        self._used_before = usage.used_bytes
        self._stored_bytes = self.freed_bytes = 0

    def stored(self, size: int) -> None:
        """So many bytes were added."""
        self._stored_bytes += size

    def freed(self, size: int) -> None:
        """So many bytes were deleted."""
        self.freed_bytes += size

    def excess(self) -> Usage | None:
        """What is used, if that is more than the watermark allows; None too where that is not known."""
        usage = self._port.usage()
        if usage is None and self._port.is_learning:
            return None
        if usage is None or usage.used_bytes < 0 or not usage.capacity_bytes or usage.capacity_bytes < 0:
            self._say_once(
                "does nothing, the adapter does not say how much it holds and may hold",
                "give it a capacity, or leave out its 'eviction'",
            )
            return None
        if usage.used_bytes <= self._watermark * usage.capacity_bytes:
            return None
        if usage.used_bytes == self._used_before and self._stored_bytes < self.freed_bytes:
            self._say_once(
                "waits, what was deleted does not show in what the adapter says it holds", "its usage() has to say that"
            )
            return None
        return usage

    def _say_once(self, what: str, remedy: str) -> None:
        if what not in self._said:
            self._said.add(what)
            logger.warning("l2 eviction %s adapter=%s; %s", what, self._port.name, remedy)
