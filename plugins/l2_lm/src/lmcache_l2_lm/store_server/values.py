"""Which values there are, in the order of their use, and how much space they take."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol

from lmcache_l2_lm.frames import Form
from lmcache_l2_lm.line import Line

ENTRY_BYTES: Final = 1024
"""What a value costs beside its bytes, so that very many empty ones are bounded, too."""

PIECE_BYTES: Final = 4 << 20
"""Of a long value, for which space is made at a time."""
SHARE_MAX: Final = 0.25
"""Of all space, that one value may have."""


class MediumError(Exception):
    """Why the memory or the disk does not take a value, or has lost one."""


class ShortageError(MediumError):
    """The process or the machine has no descriptor for it now: it is there still."""


class BrokenOffError(MediumError):
    """It was lost in the middle of an answer, whose connection is of no use any more."""


class Stored(Protocol):
    """A whole value."""

    @property
    def length(self) -> int: ...

    @property
    def form(self) -> Form: ...

    def check(self) -> None:
        """Raises MediumError where it is not what was stored.  May block."""

    def send(self, line: Line, head: bytes, end: float) -> None:
        """Send `head`, and the value behind it.  Raises OSError, MediumError."""

    def free(self) -> None:
        """Give its space back.  May block; no other call follows."""


class Draft(Protocol):
    """A value that is being written.  `finish` or `abandon` ends it."""

    def place(self) -> memoryview:
        """Memory for the next bytes; it has one at least while bytes are missing."""

    def filled(self, count: int) -> None:
        """This number of bytes is there now.  Raises MediumError."""

    def finish(self) -> Stored:
        """All bytes are there.  Raises MediumError."""

    def abandon(self) -> None: ...


class Medium(Protocol):
    """Where values are.  Any thread."""

    def begin(self, key: bytes, form: Form, length: int) -> Draft:
        """Raises MediumError where it does not take it."""


class Space:
    """Of a value that is being written: taken as its bytes come, so that one that never comes holds nothing."""

    def __init__(self, values: Values, length: int) -> None:
        self._values: Final = values
        self._taken = 0
        self._free = 0
        self.left = length
        """Bytes that have not come."""

    def more(self) -> int:
        """How many bytes may come now; while some have not, at least one.  Raises MediumError."""
        if not self._taken:
            self._take(ENTRY_BYTES)
        if not self._free:
            piece = min(PIECE_BYTES, self.left)
            self._take(piece)
            self._free = piece
        return self._free

    def came(self, count: int) -> None:
        self.left -= count
        self._free -= count

    def passed_on(self) -> None:
        """The value is there, and has the space."""
        self._taken = 0

    def release(self) -> None:
        """After `passed_on` without effect."""
        self._values.release(self._taken)
        self._taken = 0

    def _take(self, count: int) -> None:
        if not self._values.reserve(count):
            raise MediumError("values that are being received or sent leave no space for it (--max-gb)")
        self._taken += count


class Stats(NamedTuple):
    """Of all values."""

    values: int
    used_bytes: int


class _Entry:
    """A value, and how many connections are sending it."""

    __slots__ = ("is_gone", "readers", "stored")

    def __init__(self, stored: Stored) -> None:
        self.stored = stored
        self.readers = 0
        self.is_gone = False


class Values:
    """The values of one store, at most `bytes_max` bytes of them: those that are being written or sent count, too.  The
    least recently used ones go first; one that is being sent stays until it was.  Any thread."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max: Final = bytes_max
        self.counts: Final[Counter[str]] = Counter()
        """Of all that happened; roughly, where threads count at once."""
        self._lock: Final = threading.Lock()
        # All below is guarded by _lock.
        self._entries: Final[OrderedDict[bytes, _Entry]] = OrderedDict()
        self._used = 0
        self._busy = 0
        """Of that: what cannot be evicted, because it is being written or sent."""

    def stats(self) -> Stats:
        with self._lock:
            return Stats(len(self._entries), self._used)

    def space(self, length: int) -> Space:
        """For a value of this length that is to be written.  Raises MediumError where it is too long."""
        if length + ENTRY_BYTES > self._bytes_max * SHARE_MAX:
            raise MediumError(f"one value has {SHARE_MAX:.0%} of --max-gb at most")
        return Space(self, length)

    def reserve(self, count: int) -> bool:
        """Take this number of bytes.  False, and nothing is evicted, where values that are being written or sent leave none."""
        with self._lock:
            if self._busy + count > self._bytes_max:
                return False
            evicted = self._evict(self._bytes_max - count)
            self._used += count
            self._busy += count
        self.counts["evicted"] += len(evicted)
        _free(evicted)
        return True

    def release(self, count: int) -> None:
        """Give back what `reserve` has taken."""
        with self._lock:
            self._used -= count
            self._busy -= count

    def put(self, key: bytes, stored: Stored) -> None:
        """The value is there from now on, in the space that was reserved for it, in place of any other of this key."""
        with self._lock:
            old = self._take(key)
            self._entries[key] = _Entry(stored)
            self._busy -= stored.length + ENTRY_BYTES
        _free(old)

    def adopt(self, key: bytes, stored: Stored) -> bool:
        """A value of an earlier run.  False: there is no space for it."""
        if not self.reserve(stored.length + ENTRY_BYTES):
            return False
        self.put(key, stored)
        return True

    def remove(self, key: bytes, stored: Stored | None = None) -> None:
        """The value of this key, or only this one."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or (stored is not None and entry.stored is not stored):
                return
            old = self._take(key)
        _free(old)

    def has(self, key: bytes) -> bool:
        """Counts as a use: who asks will most likely read it."""
        with self._lock:
            if key not in self._entries:
                return False
            self._entries.move_to_end(key)
            return True

    @contextmanager
    def lease(self, key: bytes) -> Iterator[Stored | None]:
        """The value, which stays until the block ends."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
                entry.readers += 1
                if entry.readers == 1:
                    self._busy += entry.stored.length + ENTRY_BYTES
        if entry is None:
            yield None
            return
        try:
            yield entry.stored
        finally:
            self._give_back(entry)

    # How.

    def _give_back(self, entry: _Entry) -> None:
        cost = entry.stored.length + ENTRY_BYTES
        with self._lock:
            entry.readers -= 1
            if entry.readers:
                return
            self._busy -= cost
            if not entry.is_gone:
                return
            self._used -= cost
        entry.stored.free()

    def _evict(self, used_max: int) -> list[Stored]:
        """Under the lock.  What is to be freed outside of it."""
        freed: list[Stored] = []
        for key in list(self._idle(used_max)) if self._used > used_max else ():
            freed += self._take(key)
        return freed

    def _idle(self, used_max: int) -> Iterator[bytes]:
        left = self._used - used_max
        for key, entry in self._entries.items():
            if left <= 0:
                return
            if not entry.readers:
                left -= entry.stored.length + ENTRY_BYTES
                yield key

    def _take(self, key: bytes) -> list[Stored]:
        """Under the lock: no longer offered.  What is to be freed outside of it; one that is being sent is freed later."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return []
        if entry.readers:
            entry.is_gone = True
            return []
        self._used -= entry.stored.length + ENTRY_BYTES
        return [entry.stored]


def _free(stored: list[Stored]) -> None:
    for each in stored:
        each.free()
