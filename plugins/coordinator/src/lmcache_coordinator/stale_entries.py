"""How much of what the directory says of each server its peers did not find there.

It is a hint that any client may give, so it changes nothing in the directory.  Where the share is high, the server itself is
asked for a snapshot, which replaces what is known of it by what is true.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final, NamedTuple

from lmcache_core import Clock

WINDOW_SECONDS: Final = 60.0
ASKED_MIN: Final = 1000
"""Objects in a window, below which a share says nothing."""
SHARE_MAX: Final = 0.5
SYNC_SECONDS: Final = 600.0
"""Between two snapshots that a server is asked for."""


class Share(NamedTuple):
    """Objects that peers have asked a server for, and those of them that it did not lease, or whose bytes were wrong."""

    asked: int = 0
    stale: int = 0

    def with_more(self, asked: int, stale: int) -> Share:
        return Share(self.asked + asked, min(self.stale + stale, self.asked + asked))

    @property
    def is_high(self) -> bool:
        return self.asked >= ASKED_MIN and self.stale > SHARE_MAX * self.asked


class _Owner:
    def __init__(self) -> None:
        self.total = self.window = Share()
        self.window_start = 0.0
        self.sync_at = 0.0
        """When it may be asked for a snapshot again."""


class StaleEntries:
    """Safe from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards what is below
        self._owners: dict[str, _Owner] = {}

    def heard(self, instance: str, asked: int, stale: int) -> None:
        """A reader has asked this server for `asked` objects and did not get `stale` of them.  The server is registered."""
        now = self._clock.monotonic()
        with self._lock:
            owner = self._owners.setdefault(instance, _Owner())
            if now - owner.window_start > WINDOW_SECONDS:
                owner.window_start, owner.window = now, Share()
            owner.total = owner.total.with_more(asked, stale)
            owner.window = owner.window.with_more(asked, stale)

    def forget(self, instance: str) -> None:
        with self._lock:
            self._owners.pop(instance, None)

    def wants_sync(self, instance: str) -> bool:
        """True once: the caller asks the server for a snapshot."""
        now = self._clock.monotonic()
        with self._lock:
            owner = self._owners.get(instance)
            if owner is None or now < owner.sync_at or not self._recent(owner, now).is_high:
                return False
            owner.sync_at = now + SYNC_SECONDS
            return True

    def totals(self) -> Mapping[str, Share]:
        """By instance, since it has registered."""
        with self._lock:
            return {name: owner.total for name, owner in self._owners.items()}

    def high(self) -> Mapping[str, Share]:
        """By instance, those of now."""
        now = self._clock.monotonic()
        with self._lock:
            recent = {name: self._recent(owner, now) for name, owner in self._owners.items()}
        return {name: share for name, share in recent.items() if share.is_high}

    def _recent(self, owner: _Owner, now: float) -> Share:
        return owner.window if now - owner.window_start <= WINDOW_SECONDS else Share()
