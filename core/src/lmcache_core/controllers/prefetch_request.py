"""A prefetch: a lookup that goes on in L2, as a table of shards by chunks that is being filled; and the bytes of L1 that all
prefetches may occupy."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Container, Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lmcache_core.contracts.policies import RequestFacts
from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_core.l1.cache import NO_REQUEST
from lmcache_core.l1.index import SpaceRecord
from lmcache_core.l1.leases import Lease, LeaseState
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.results import Bitmap

ABSENT = -1
"""The slot number of a chunk that is not there."""

Flags = bytes | bytearray


class PrefixMatch(NamedTuple):
    """The chunks that every shard has."""

    answer: int | Bitmap
    """Chunks of the prefix; of a sparse lookup, the chunks themselves."""
    needed: tuple[Sequence[int], ...]
    """By shard: the chunks that have to stay for it, rising."""


def match_of(shards: Sequence[Flags], windows: Sequence[int | None], chunks: int, *, sparse: bool) -> PrefixMatch:
    if sparse:
        found = in_every(shards)
        return PrefixMatch(Bitmap(chunks, found), (found,) * len(shards))
    return prefix_of(longest_prefix(shards, windows, chunks) if shards else 0, windows)


def prefix_of(end: int, windows: Sequence[int | None]) -> PrefixMatch:
    return PrefixMatch(end, tuple([range(needed_from(end, window), end) for window in windows]))


def longest_prefix(shards: Sequence[Flags], windows: Sequence[int | None], limit: int) -> int:
    """The largest n of at most `limit`, so that every shard has what it needs of the first n chunks: all of them, or with
    a window the last `window` of them."""
    end = limit
    while True:
        before = end
        for flags, window in zip(shards, windows, strict=True):
            if window is None:
                gap = flags.find(0, 0, end)
                end = end if gap < 0 else gap
            else:
                # A gap within the window: every shorter prefix that ends behind it has it in its window, too.
                while (gap := flags.rfind(0, needed_from(end, window), end)) >= 0:
                    end = gap
        if end == before:
            return end


def needed_from(end: int, window: int | None) -> int:
    """The first chunk that a shard needs of a prefix of `end` chunks."""
    return 0 if window is None else max(0, end - window)


def in_every(shards: Sequence[Flags]) -> list[int]:
    """The chunks that every shard has; none where there are no shards."""
    return [chunk for chunk, flags in enumerate(zip(*shards, strict=True)) if all(flags)]


class Cell(NamedTuple):
    """One chunk of one shard.  Cells sort in the order in which they are of use: chunk by chunk, across shards."""

    chunk: int
    row: int


class Source(NamedTuple):
    """Where a cell can be loaded from: in one of its shard's layouts, from one adapter."""

    record: SpaceRecord
    client: AdapterClient


class Wanted(NamedTuple):
    """A cell that L1 does not have, under one of the layouts it may have."""

    cell: Cell
    record: SpaceRecord
    key: ObjectKey


@dataclass(slots=True, eq=False)
class PrefetchRow:
    """One shard.  `slots[c]` is the slot of chunk c, or ABSENT; the controller fills it."""

    slots: list[int]
    records: tuple[SpaceRecord, ...]
    window: int | None = None

    def flags(self) -> bytearray:
        """1 for each chunk that is there."""
        return bytearray([slot != ABSENT for slot in self.slots])


@dataclass(slots=True, eq=False)
class Prefetch:
    """`on_done` is called on the controller's thread, once, with what every row has and how many objects were loaded for
    it; what lies outside is still held, and the caller's to release.  From `submit` until then everything here belongs
    to the controller's thread."""

    request_id: str
    lease: Lease
    rows: list[PrefetchRow]
    chunk_hashes: Sequence[bytes]
    on_done: Callable[[PrefixMatch, int], None]
    started: float
    request: RequestFacts = NO_REQUEST
    sparse: bool = False
    keeps: bool = False
    """True: what is loaded for it stays in L1 after its last reader, even if the policy does not retain it."""
    first_chunk: int = 0
    """Place of its first chunk in the prompt."""

    wanted: list[Wanted] = field(default_factory=list)
    asked: set[AdapterClient] = field(default_factory=set)
    """Adapters whose answer to the lookup counts and has not come."""
    found: dict[AdapterClient, Bitmap] = field(default_factory=dict)
    """By adapter, which of `wanted` it has."""
    pinned: dict[AdapterClient, list[ObjectKey]] = field(default_factory=dict)
    """By adapter, the keys that it has pinned for this prefetch."""
    planned: bool = False
    retain: bool = False
    sources: dict[Cell, list[Source]] = field(default_factory=dict)
    """Where each missing cell can still be loaded from, best first."""
    todo: deque[Cell] = field(default_factory=deque)
    """Cells that are needed and not under way, in order."""
    loading: dict[Cell, Source] = field(default_factory=dict)
    """Cells that are under way, also those loaded for another prefetch."""
    needed: Sequence[Container[int]] = ()
    """By row, the chunks that it aims for."""
    expected: int | None = None
    """Chunks of the prefix that it aims for; None until it is planned.  Other threads may look."""
    stale: bool = False
    """Something is not available any more that it may be aiming for."""
    short_since: float | None = None
    """Since when L1 has had no free space for the next cell."""
    answered: bool = False
    loaded: int = 0
    loaded_bytes: int = 0
    failed: int = 0

    @property
    def over(self) -> bool:
        """Its request has ended."""
        return self.lease.state is not LeaseState.ACTIVE

    @property
    def complete(self) -> bool:
        """True when every cell is there that can still be loaded."""
        return not self.todo and not any(cell.chunk in self.needed[cell.row] for cell in self.loading)

    def matched(self) -> PrefixMatch:
        """The prefix match of the cells that are in L1."""
        return self._matched([row.flags() for row in self.rows])

    def missing(self) -> list[Wanted]:
        """Keys to look up in L2: shard by shard in prompt order, under every layout that a chunk may have."""
        flags = [row.flags() for row in self.rows]
        prefix = 0 if self.sparse else longest_prefix(flags, self._windows(), len(self.chunk_hashes))
        return [
            Wanted(Cell(chunk, number), record, ObjectKey(record.space, self.chunk_hashes[chunk]))
            for number, row in enumerate(self.rows)
            for chunk in range(0 if self.sparse else needed_from(prefix + 1, row.window), len(row.slots))
            if row.slots[chunk] == ABSENT
            for record in row.records
        ]

    def aim(self) -> None:
        """Aim for what can still be loaded: `todo` becomes the cells of it that are neither there nor being loaded."""
        self.stale = False
        flags = [row.flags() for row in self.rows]
        for cell, sources in self.sources.items():
            if sources or cell in self.loading:
                flags[cell.row][cell.chunk] = 1
        match = self._matched(flags)
        needed = match.needed
        self.expected = match.answer if isinstance(match.answer, int) else None
        cells = [
            Cell(chunk, number)
            for number, chunks in enumerate(needed)
            for chunk in chunks
            if self.rows[number].slots[chunk] == ABSENT
        ]
        self.needed = [frozenset(chunks) if self.sparse else chunks for chunks in needed]
        self.todo = deque(sorted(cell for cell in cells if cell not in self.loading))

    def drop(self, cell: Cell, source: Source) -> None:
        """This cell is not available there.  `aim` afterwards."""
        self.stale = True
        sources = self.sources.get(cell, [])
        self.sources[cell] = [
            other for other in sources if other.client is not source.client or other.record is not source.record
        ]

    def stop_waiting(self) -> None:
        """There is no free space for what is not under way: be content with the rest."""
        for cell in self.todo:
            self.sources[cell] = []
        self.aim()

    def forget(self) -> None:
        """It has its answer.  Its lookup may be open for long, and need not keep all this.  `on_done` refers to that lookup,
        which refers to this: such a cycle would stay until the next full garbage collection."""
        self.on_done = _answered
        self.rows, self.chunk_hashes, self.wanted, self.needed = [], (), [], ()
        self.found, self.sources = {}, {}
        self.todo.clear()

    def _windows(self) -> list[int | None]:
        return [row.window for row in self.rows]

    def _matched(self, flags: Sequence[bytearray]) -> PrefixMatch:
        return match_of(flags, self._windows(), len(self.chunk_hashes), sparse=self.sparse)


def _answered(match: PrefixMatch, loaded: int) -> None:
    raise AssertionError("a prefetch has one answer")


class PrefetchBudget:
    """Belongs to the prefetch controller's thread, but `used_bytes` may be read by any."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._borrowed: dict[Hashable, tuple[Prefetch, int]] = {}
        self._held: dict[tuple[Prefetch, ...], int] = {}
        """Bytes by who waited for them."""

    @property
    def used_bytes(self) -> int:
        held = sum(size for who, size in list(self._held.items()) if any(map(_is_held, who)))
        return held + sum(size for _, size in list(self._borrowed.values()))

    def left_bytes(self, prefetch: Prefetch) -> float:
        """What this one may occupy, too.  One that has all to itself is not bounded, so that a prompt larger than the limit is
        loaded whole, with nothing beside it."""
        others = any(who is not prefetch for who, _ in self._borrowed.values())
        others = others or any(prefetch not in who and any(map(_is_held, who)) for who in self._held)
        return self.limit_bytes - self.used_bytes if others else math.inf

    @property
    def waits_for_readers(self) -> bool:
        """True where some of it is referenced for requests that have their answer."""
        return any(prefetch.answered and _is_held(prefetch) for who in self._held for prefetch in who)

    def lend(self, job: Hashable, prefetch: Prefetch, size_bytes: int) -> None:
        """An adapter borrows slots of `size_bytes` for this job of a prefetch."""
        self._borrowed[job] = prefetch, size_bytes

    def give_back(self, job: Hashable) -> None:
        """The adapter touches them no more.  A second call does nothing."""
        self._borrowed.pop(job, None)

    def hold(self, prefetches: Sequence[Prefetch], size_bytes: int) -> None:
        """`size_bytes` were loaded for these together.  It counts, once, until the leases of all their lookups hold nothing:
        their requests have ended, or workers have taken everything over."""
        who = tuple(dict.fromkeys(prefetches))
        self._held[who] = self._held.get(who, 0) + size_bytes

    def holds(self, prefetch: Prefetch) -> bool:
        """True where objects that were loaded for it count."""
        return any(prefetch in who for who in self._held)

    def sweep(self) -> None:
        """Forget what is held no more."""
        for who in list(self._held):
            if not any(map(_is_held, who)):
                del self._held[who]


def _is_held(prefetch: Prefetch) -> bool:
    return prefetch.lease.state is not LeaseState.ENDED and bool(prefetch.lease.slots)
