"""What a lookup holds of one shard, and how many reads of it are still to come.

Not synchronised: the lookups' lock guards it.  Reads are counted in bytes (`READERS_MAX`).  A request's workers take whole
runs, and requests hit whole prompts, so the usual cases compare and cut arrays and do not loop over chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Protocol

from lmcache_core.controllers.reach import ABSENT
from lmcache_core.model.keys import KeySpace


class Row(Protocol):
    """`slots` has one entry per chunk of the request until `settle`, ABSENT where the chunk is not there."""

    slots: list[int]
    spaces: tuple[KeySpace, ...]
    in_l1: list[int]
    """`slots` as they were found at once, before anything was brought from L2."""

    def settle(self, needed: Sequence[int], readers: int) -> list[int]:
        """The answer is known, and takes these chunks, rising: each will be read so often.  Returns the slots that are
        not needed."""

    def claim(self, first_chunk: int, slots: Sequence[int]) -> list[int]:
        """A worker holds these now: count one read of each.  Returns the slots that have no read left."""

    def give_up(self, first_chunk: int, end_chunk: int) -> list[int]:
        """Nobody will read these: returns the slots that were still to be read."""

    def take_hits(self, first_chunk: int) -> list[int]:
        """What the answer takes and was in L1 at once, of the chunks from this one on.  Given once."""

    def positions(self) -> dict[int, int]:
        """The chunk of each slot that the answer takes."""


class PrefixRow:
    """A run of chunks of a prompt.  After `settle`, `slots[0]` is that of chunk `first`."""

    __slots__ = ("first", "in_l1", "reads_left", "slots", "spaces")

    def __init__(self, slots: list[int], spaces: tuple[KeySpace, ...]) -> None:
        self.slots = slots
        self.spaces = spaces
        self.in_l1: list[int] = []
        self.first = 0
        self.reads_left = bytearray()

    def settle(self, needed: Sequence[int], readers: int) -> list[int]:
        first, end = (needed[0], needed[-1] + 1) if needed else (0, 0)
        rest = self.slots[:first] + self.slots[end:]
        self.first = first
        if rest:
            self.slots = self.slots[first:end]
        self.reads_left = bytearray([readers]) * (end - first)
        return [slot for slot in rest if slot != ABSENT]

    def claim(self, first_chunk: int, slots: Sequence[int]) -> list[int]:
        begin = first_chunk - self.first
        left = self.reads_left[max(0, begin) : max(0, begin + len(slots))]
        if not left:
            return []
        if begin >= 0 and left.count(left[0]) == len(slots) and self.slots[begin : begin + len(slots)] == list(slots):
            return self._claim_run(begin, slots, left[0])
        spent = []
        for at in range(max(0, -begin), min(len(slots), len(self.slots) - begin)):
            slot, chunk = slots[at], begin + at
            if self.slots[chunk] == slot and self.reads_left[chunk]:
                self.reads_left[chunk] -= 1
                if not self.reads_left[chunk]:
                    spent.append(slot)
        return spent

    def give_up(self, first_chunk: int, end_chunk: int) -> list[int]:
        begin, end = max(0, first_chunk - self.first), max(0, end_chunk - self.first)
        left = self.reads_left[begin:end]
        slots = self.slots[begin : begin + len(left)]
        self.reads_left[begin:end] = bytes(len(left))
        return list(compress(slots, left)) if 0 in left else slots

    def take_hits(self, first_chunk: int) -> list[int]:
        found, self.in_l1 = self.in_l1, []
        if len(found) != len(self.slots) or first_chunk > self.first:
            found = found[max(first_chunk, self.first) : self.first + len(self.slots)]
        return [slot for slot in found if slot != ABSENT] if ABSENT in found else found

    def positions(self) -> dict[int, int]:
        return {slot: chunk for chunk, slot in enumerate(self.slots, self.first)}

    def _claim_run(self, begin: int, slots: Sequence[int], reads: int) -> list[int]:
        if not reads:
            return []
        self.reads_left[begin : begin + len(slots)] = bytes([reads - 1]) * len(slots)
        return list(slots) if reads == 1 else []


class SparseRow:
    """Any chunks.  Workers read them in whatever order, so that a read is known by its slot; the same chunk may be asked
    for at several places, and is then read as often."""

    __slots__ = ("_freed", "_readers", "_reads_left", "in_l1", "slots", "spaces")

    def __init__(self, slots: list[int], spaces: tuple[KeySpace, ...]) -> None:
        self.slots = slots
        self.spaces = spaces
        self.in_l1: list[int] = []
        self._readers = 0
        self._reads_left: dict[int, int] = {}
        self._freed = bytearray(len(slots))

    def settle(self, needed: Sequence[int], readers: int) -> list[int]:
        self._readers = readers
        for chunk in needed:
            slot = self.slots[chunk]
            self._reads_left[slot] = self._reads_left.get(slot, 0) + readers
        rest = {slot for slot in self.slots if slot != ABSENT and slot not in self._reads_left}
        places = frozenset(needed)
        self.slots = [slot if place in places else ABSENT for place, slot in enumerate(self.slots)]
        return list(rest)

    def claim(self, first_chunk: int, slots: Sequence[int]) -> list[int]:
        spent = []
        for slot in slots:
            if self._reads_left.get(slot):
                spent += self._count(slot, 1)
        return spent

    def give_up(self, first_chunk: int, end_chunk: int) -> list[int]:
        spent = []
        for place in range(max(0, first_chunk), min(end_chunk, len(self.slots))):
            slot = self.slots[place]
            if not self._freed[place] and self._reads_left.get(slot):
                self._freed[place] = 1
                spent += self._count(slot, min(self._readers, self._reads_left[slot]))
        return spent

    def take_hits(self, first_chunk: int) -> list[int]:
        """A sparse lookup that comes again tells nothing new."""
        found, self.in_l1 = set(self.in_l1), []
        return [slot for slot in self._reads_left if slot in found] if first_chunk == 0 else []

    def positions(self) -> dict[int, int]:
        return {slot: chunk for chunk, slot in reversed(list(enumerate(self.slots)))}

    def _count(self, slot: int, reads: int) -> list[int]:
        self._reads_left[slot] -= reads
        return [] if self._reads_left[slot] else [slot]
