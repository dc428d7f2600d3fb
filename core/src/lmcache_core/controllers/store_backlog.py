"""How many bytes of L1 are on their way to L2."""

from __future__ import annotations

import threading


class StoreBacklog:
    """Counts what was admitted twice over: until it was looked at, and until no adapter may store it any more.  Safe from
    any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the three below
        self._size_bytes = 0
        self._unseen_bytes = 0
        self._refused = 0
        self._idle = threading.Event()
        self._idle.set()

    @property
    def size_bytes(self) -> int:
        """Objects that go to several adapters count once.  What an adapter keeps beyond its answer does not count."""
        return self._size_bytes

    @property
    def refused(self) -> int:
        """Objects that were not admitted."""
        return self._refused

    def admit(self, count: int, size: int, unseen_max: int, *, hit: bool) -> bool:
        """So many objects come.  False where more than may be would not have been looked at; those that were there before
        and only `hit` are not counted as refused then, and are not let in as the first either, if they are too large."""
        with self._lock:
            full = self._unseen_bytes + size > unseen_max and (hit or self._unseen_bytes > 0)
            if not full:
                self._unseen_bytes += size
                self._size_bytes += size
                self._idle.clear()
            elif not hit:
                self._refused += count
        return not full

    def seen(self, size: int) -> None:
        """So much of it was looked at."""
        with self._lock:
            self._unseen_bytes -= size

    def shrink(self, size: int) -> None:
        """So much of it is not on its way any more."""
        with self._lock:
            self._size_bytes -= size
            if self._size_bytes == 0:
                self._idle.set()

    def wait(self, seconds: float) -> bool:
        """Until nothing is on its way.  False when something still is."""
        return self._idle.wait(seconds)
