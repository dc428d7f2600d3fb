"""How many objects a backend holds and how many bytes they are, without a list of them in memory."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from lmcache_core import Usage

_ID_BYTES: Final = 8
"""Of the 16 of an object id: two of a billion objects share them once in thirty countings, and differ by one object then."""


class Count:
    """One listing of the backend.  Used by one thread.  16 B per object until it has ended."""

    def __init__(self, tally: Tally) -> None:
        self._tally: Final = tally
        self._ids: Final = array("Q")
        self._sizes: Final = array("Q")

    def saw(self, object_id: bytes, size: int) -> None:
        """The listing names it; more than once does no harm."""
        self._ids.append(_short(object_id))
        self._sizes.append(size)

    def finish(self) -> None:
        """The listing was complete: it is the truth, but for what this server has changed meanwhile."""
        self._tally._finish(self._ids, self._sizes)


class Tally:
    """Any thread.  What a server stores and deletes is told at once, so that `usage` is exact as long as no other changes
    the backend; where others do, it is as exact as the last counting."""

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._objects = 0
        self._bytes = 0
        self._known = False
        self._changed: dict[int, int | None] | None = None
        """While a counting runs: what has become of objects meanwhile, their size or None."""

    @contextmanager
    def counting(self) -> Iterator[Count]:
        """List everything inside, then call `finish`; left without it, the counting changes nothing.  One at a time."""
        with self._lock:
            if self._changed is not None:
                raise RuntimeError("a counting is under way already")
            self._changed = {}
        try:
            yield Count(self)
        finally:
            with self._lock:
                self._changed = None

    def stored(self, object_id: bytes, size: int) -> None:
        """It is there now, and was not before.  Tell it only when the backend has answered."""
        with self._lock:
            self._objects += 1
            self._bytes += size
            if self._changed is not None:
                self._changed[_short(object_id)] = size

    def deleted(self, object_id: bytes, size: int) -> None:
        """It was there, and is gone."""
        with self._lock:
            self._objects -= 1
            self._bytes -= size
            if self._changed is not None:
                self._changed[_short(object_id)] = None

    def usage(self, capacity_bytes: int | None = None) -> Usage | None:
        """None until the first counting has finished."""
        with self._lock:
            if not self._known:
                return None
            return Usage(max(self._bytes, 0), capacity_bytes, max(self._objects, 0))

    def _finish(self, ids: array[int], sizes: array[int]) -> None:
        # Sorted outside of the lock: a second or so for a million, during which stores go on and are noted.
        order = sorted(range(len(ids)), key=ids.__getitem__)
        with self._lock:
            if self._changed is None:
                raise RuntimeError("the counting has ended already")
            changed = self._changed
            objects = total = 0
            last = None
            for at in order:
                short = ids[at]
                if short != last and short not in changed:
                    objects += 1
                    total += sizes[at]
                last = short
            there = [size for size in changed.values() if size is not None]
            self._objects = objects + len(there)
            self._bytes = total + sum(there)
            self._known = True


def _short(object_id: bytes) -> int:
    return int.from_bytes(object_id[:_ID_BYTES], "little")
