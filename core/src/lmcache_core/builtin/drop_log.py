"""Log lines about dropped stores: a server that cannot keep up drops many times a second, and says so now and then."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from lmcache_core.contracts.events import StoresDropped

PERIOD_SECONDS: Final = 10.0
KINDS_MAX: Final = 256
"""Kinds that are summed apart; when more come, what was summed is said, and summing begins anew."""


@dataclass(slots=True)
class _Sum:
    due: float = 0.0
    objects: int = 0
    object_bytes: int = 0


class DropLog:
    """The first drop of a kind (adapter and reason) is a line at once; then there is one line per period, with the sum of
    all that came since the last.  One thread."""

    def __init__(self, logger: logging.Logger, now: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._now = now
        self._sums: dict[tuple[str, str], _Sum] = {}

    def note(self, event: StoresDropped) -> None:
        now = self._now()
        kind = (event.adapter, event.reason)
        if kind not in self._sums and len(self._sums) >= KINDS_MAX:
            self.flush()
        total = self._sums.setdefault(kind, _Sum())
        total.objects += event.objects
        total.object_bytes += event.object_bytes
        if now >= total.due:
            self._write(kind, total)
            self._sums[kind] = _Sum(now + PERIOD_SECONDS)

    def flush(self) -> None:
        """Say what was not said yet."""
        for kind, total in self._sums.items():
            if total.objects:
                self._write(kind, total)
        self._sums.clear()

    def _write(self, kind: tuple[str, str], total: _Sum) -> None:
        adapter, reason = kind
        self._logger.warning(
            "objects will not reach L2 adapter=%s objects=%d bytes=%d reason=%s",
            adapter or "any",
            total.objects,
            total.object_bytes,
            reason,
        )
