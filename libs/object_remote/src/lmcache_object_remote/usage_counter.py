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

    def __init__(self, usage_counter: UsageCounter) -> None:
        self._usage_counter: Final = usage_counter
        self._ids: Final = array("Q")
        self._sizes: Final = array("Q")

    def saw(self, object_id: bytes, size: int) -> None:
        """The listing names it; more than once does no harm."""
        self._ids.append(_short(object_id))
        self._sizes.append(size)

    def finish(self) -> None:
        """The listing was complete: it is the truth, but for what this server has changed meanwhile."""
        self._usage_counter._finish(self._ids, self._sizes)


class UsageCounter:
    """Any thread.  What a server stores and deletes is counted at once, so that `usage` is exact as long as no other changes
    the backend; where others do, it is as exact as the last counting."""

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._objects = 0
        self._bytes = 0
        self._known = False
        self._changed: dict[int, int | None] | None = None
        """While a counting runs: what has become of objects meanwhile, their size or None."""
        self._changing: dict[int, bool | None] = {}
        """Of each change that is not answered yet: was its object in the last listing that has ended since it began?"""

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

    @contextmanager
    def changing(self, object_id: bytes) -> Iterator[None]:
        """Around a request that stores or deletes it, and around `stored` or `deleted`, where that follows: a listing may
        end between the request's effect and its answer.  One at a time for each object."""
        short = _short(object_id)
        with self._lock:
            self._changing[short] = None
        try:
            yield
        finally:
            with self._lock:
                self._changing.pop(short, None)

    def stored(self, object_id: bytes, size: int) -> None:
        """It is there now, and was not before.  Tell it only when the backend has answered."""
        short = _short(object_id)
        with self._lock:
            if self._listed(short) is not True:  # else the listing has counted it already
                self._objects += 1
                self._bytes += size
            self._note(short, size)

    def deleted(self, object_id: bytes, size: int) -> None:
        """It was there, and is gone."""
        short = _short(object_id)
        with self._lock:
            if self._listed(short) is not False:  # else the listing has not counted it any more
                self._objects -= 1
                self._bytes -= size
            self._note(short, None)

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
            open_changes = dict.fromkeys(self._changing.keys() - changed.keys(), False)
            objects = total = 0
            last = None
            for at in order:
                short = ids[at]
                if short != last and short not in changed:
                    objects += 1
                    total += sizes[at]
                    if short in open_changes:
                        open_changes[short] = True
                last = short
            there = [size for size in changed.values() if size is not None]
            self._objects = objects + len(there)
            self._bytes = total + sum(there)
            self._changing.update(open_changes)
            self._known = True

    def _listed(self, short: int) -> bool | None:
        """Counted once: the next part of this change, a replacement's second half, is new to every listing."""
        listed = self._changing.get(short)
        if listed is not None:
            self._changing[short] = None
        return listed

    def _note(self, short: int, size: int | None) -> None:
        if self._changed is not None:
            self._changed[short] = size


def _short(object_id: bytes) -> int:
    return int.from_bytes(object_id[:_ID_BYTES], "little")
