"""Objects of ours in another format version: whether they make room, and how many were left alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from lmcache_core import Check, Clock, Condition, Outcome, Severity

LEFT_MAX: Final = 65_536
"""Names that are remembered, the newest ones."""
LEFT_SECONDS: Final = 600.0
"""How long one that was met counts as there."""


class OtherVersions:
    """Any thread."""

    def __init__(self, clock: Clock, replaces: Callable[[], bool]) -> None:
        """`replaces`: does this server alone use the backend, now?"""
        self._clock: Final = clock
        self._replaces: Final = replaces
        self._lock: Final = threading.Lock()  # guards the one below
        self._left: Final[dict[bytes | str, float]] = {}
        """When each was met last, in that order."""

    def outcome_of(self, found: Check, name: bytes | str) -> Outcome:
        """What an object is to be treated as whose header page is none that can be read: one of another version as DAMAGED, so
        that it makes room, where this server alone uses the backend.  Elsewhere it may be a newer server's: FOREIGN."""
        if not found.other_version:
            return found.outcome
        if self._replaces():
            return Outcome.DAMAGED
        with self._lock:
            self._left.pop(name, None)
            self._left[name] = self._clock.monotonic()
            if len(self._left) > LEFT_MAX:
                del self._left[next(iter(self._left))]
        return Outcome.FOREIGN

    def left_alone(self, name: bytes | str) -> bool:
        """Was one met under this name, and did not make room?"""
        return name in self._left

    def conditions(self) -> Sequence[Condition]:
        """That some were left alone, for as long as they are met."""
        since = self._clock.monotonic() - LEFT_SECONDS
        with self._lock:
            while self._left and (oldest := next(iter(self._left))) and self._left[oldest] < since:
                del self._left[oldest]
            count = len(self._left)
        if not count:
            return ()
        return (
            Condition(
                "objects_of_other_version",
                Severity.INFO,
                f"{count} objects that were met in the last {LEFT_SECONDS / 60:.0f} minutes are of another format version; "
                "they are left to the servers that wrote them, and their keys are not stored",
                "let servers of one version share a backend, or give those of each version a prefix of their own",
                counts={"objects": count},
            ),
        )
