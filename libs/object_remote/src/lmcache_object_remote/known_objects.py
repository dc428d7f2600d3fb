"""Answers of a backend about single objects, remembered for a while."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final, NamedTuple

from lmcache_core import Clock, ObjectKey


class Sight(NamedTuple):
    """What a backend was last known to have under a key."""

    present: bool
    size: int
    """Bytes, header page included; 0 where that is not known, or nothing is there."""


ABSENT: Final = Sight(present=False, size=0)


class KnownObjects:
    """Which objects are there, and which are not.  Any thread.  About 250 B per entry.

    An answer is only ever as good as it is old: another server may delete what is known to be there, so a load must take a
    miss for an answer; and what is known not to be there may be stored by another, which costs a hit for `absent_seconds`.
    An answer may also come after a change that it does not know of: note a lookup's answer only where `look` still says
    what it said before the backend was asked.
    """

    def __init__(self, clock: Clock, *, entries_max: int, present_seconds: float, absent_seconds: float) -> None:
        """0 seconds: such answers are not remembered at all; `math.inf`: until they are replaced or pushed out."""
        self._clock: Final = clock
        self._entries_max: Final = entries_max
        self._present_seconds: Final = present_seconds
        self._absent_seconds: Final = absent_seconds
        self._lock: Final = threading.Lock()
        self._sights: Final[OrderedDict[bytes, tuple[Sight, float]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sights)

    def look(self, key: ObjectKey) -> Sight | None:
        """None: not known (any more); ask the backend."""
        object_id = key.object_id
        with self._lock:
            found = self._sights.get(object_id)
            if found is None:
                return None
            sight, until = found
            if self._clock.monotonic() >= until:
                del self._sights[object_id]
                return None
            self._sights.move_to_end(object_id)
            return sight

    def present(self, key: ObjectKey, size: int = 0) -> None:
        self._note(key, Sight(True, size), self._present_seconds)

    def absent(self, key: ObjectKey) -> None:
        self._note(key, ABSENT, self._absent_seconds)

    def forget(self, key: ObjectKey) -> None:
        """What was known turned out to be wrong, or is about to change: the next one asks."""
        with self._lock:
            self._sights.pop(key.object_id, None)

    def _note(self, key: ObjectKey, sight: Sight, seconds: float) -> None:
        object_id = key.object_id
        with self._lock:
            self._sights.pop(object_id, None)
            if seconds <= 0:
                return
            self._sights[object_id] = (sight, self._clock.monotonic() + seconds)
            while len(self._sights) > self._entries_max:
                self._sights.popitem(last=False)
