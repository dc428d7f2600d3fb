"""The residency feed of L1, and the numbered changes behind feeds: a ring with a bound."""

from __future__ import annotations

import itertools
import threading
import time
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from lmcache_core.contracts.residency import Change, ChangeKind, Changes, Overrun, SnapshotPart
from lmcache_core.model.keys import HASH_BYTES, KeySpace
from lmcache_core.model.object_header import HEADER_BYTES

if TYPE_CHECKING:
    from lmcache_core.l1.index import SlotIndex

JOURNAL_KEYS: Final = 262_144
"""Keys whose last changes are kept: 40 MiB where each is a run of its own, and 8 MiB of hashes where runs are long."""
_FREED_RUNS: Final = 1024
"""With one record, which has L1's lock."""
_CUT_RUNS: Final = 4096
_SLICE_SLOTS: Final = 1024
PAUSE_SECONDS: Final = 0.0001
"""Between two slices of long work.  A lock that is taken again at once is never available to waiting threads: they wake up
too late each time."""


class Journal:
    """A ring of runs of keys.  Not synchronised: the caller holds the lock of what it is about."""

    def __init__(self, keys_max: int = JOURNAL_KEYS) -> None:
        self._keys_max = keys_max
        self._runs: list[Change | None] = []
        self._firsts = array("Q")
        """The number of each run's first key."""
        self._oldest = 0
        """Index of the oldest run that is kept; those before it are None, and are cut off now and then."""
        self._readers = 0
        self.is_open = False
        """Something reads it.  To be looked at before `record` is called, without a lock."""
        self.end = 0
        """The number of the next key."""

    def open(self) -> None:
        if self._readers == 0:
            # What happened meanwhile was not recorded: a reader that comes back must not go on as if nothing had.
            self.end += 1
        self._readers += 1
        self.is_open = True

    def close(self) -> None:
        self._readers -= 1
        if self._readers == 0:
            self.is_open = False
            self._cut(len(self._runs))

    def record(self, kind: ChangeKind, space: KeySpace, object_bytes: int, hashes: bytes) -> None:
        """Only while it is open."""
        self._runs.append(Change(kind, space, object_bytes, hashes))
        self._firsts.append(self.end)
        self.end += len(hashes) // HASH_BYTES
        firsts, last = self._firsts, len(self._runs) - 1
        until = min(last, self._oldest + _FREED_RUNS)  # more of them are freed with later records
        while self._oldest < until and firsts[self._oldest + 1] + self._keys_max < self.end:
            self._runs[self._oldest] = None
            self._oldest += 1
        if self._oldest > _CUT_RUNS:
            self._cut(self._oldest)

    def read(self, first: int, keys: int) -> Changes | Overrun:
        """Changes from the number `first` on, of at most `keys` keys."""
        oldest = self._firsts[self._oldest] if self._runs else self.end
        if not oldest <= first <= self.end:
            return Overrun(oldest)
        if first == self.end:
            return Changes(first, [])
        found: list[Change] = []
        at = bisect_right(self._firsts, first, self._oldest) - 1
        number, left = first, keys
        while left and at < len(self._runs):
            change = self._runs[at]
            assert change is not None, "it is not before the oldest"
            skip = number - self._firsts[at]
            if hashes := change.hashes[skip * HASH_BYTES : (skip + left) * HASH_BYTES]:
                found.append(change if len(hashes) == len(change.hashes) else change._replace(hashes=hashes))
                number += len(hashes) // HASH_BYTES
                left -= len(hashes) // HASH_BYTES
            at += 1
        return Changes(first, found)

    def _cut(self, runs: int) -> None:
        del self._runs[:runs], self._firsts[:runs]
        self._oldest = 0


class JournalFeed:
    """What all residency feeds have in common.  Safe from any thread."""

    def __init__(self, journal: Journal, lock: threading.Lock) -> None:
        """`lock` guards the journal."""
        self.journal: Final = journal
        self._lock = lock

    def open(self) -> None:
        with self._lock:
            self.journal.open()

    def close(self) -> None:
        with self._lock:
            self.journal.close()

    @property
    def end(self) -> int:
        return self.journal.end

    def read(self, first: int, keys: int) -> Changes | Overrun:
        with self._lock:
            return self.journal.read(first, keys)


class L1Feed(JournalFeed):
    """Implements `contracts.residency.ResidencyFeed`."""

    name = "l1"
    backend = ""
    is_shared = False
    epoch = 0

    def __init__(self, index: SlotIndex) -> None:
        super().__init__(index.journal, index.lock)
        self._index = index

    def snapshot(self, keys: int) -> Iterator[SnapshotPart]:
        """An object stays in its slot as long as it is there: one slot after the other is everything."""
        index, begins_at, begin = self._index, self.journal.end, 0
        found: dict[int, tuple[KeySpace, int, list[bytes]]] = {}
        slots = len(index.table)
        step = min(_SLICE_SLOTS, keys)
        count = 0
        while begin < slots:
            with index.lock:
                for slot in itertools.chain(*index.table.ready(begin, begin + step)):
                    number, name = index.table.key(slot)
                    if number not in found:
                        record = index.spaces.numbered(number)
                        found[number] = (record.space, HEADER_BYTES + record.payload_bytes, [])
                    found[number][2].append(name)
                    count += 1
            begin += step
            if count > keys - step and begin < slots:
                yield _part(begins_at, found)
                found, count = {}, 0
            time.sleep(PAUSE_SECONDS)
        yield _part(begins_at, found)


def _part(begins_at: int, found: Mapping[int, tuple[KeySpace, int, list[bytes]]]) -> SnapshotPart:
    return SnapshotPart(
        begins_at, [Change(ChangeKind.STORE, space, size, b"".join(names)) for space, size, names in found.values()]
    )
