"""What the eviction policy has to be told, written down on the request path and read off it.

The policy belongs to the eviction controller's thread.  The cache only appends to a list here, once per batch.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from lmcache_core.contracts.policies import AccessFacts, InsertFacts

NOTES_MAX = 100_000
"""Accesses are no longer written down beyond this many notes; a policy that far behind has lost nothing it could use."""
_ROUNDS = 2**32


@dataclass(frozen=True, slots=True)
class Inserted:
    slots: list[int]
    facts: InsertFacts


@dataclass(frozen=True, slots=True)
class Accessed:
    slots: list[int]
    facts: AccessFacts


@dataclass(frozen=True, slots=True)
class Removed:
    slots: list[int]


Note = Inserted | Accessed | Removed


class Notes:
    """Not synchronised: the caller holds the cache's lock."""

    def __init__(self) -> None:
        self._notes: list[Note] = []
        self._round = 1
        self._removed_in = array("I")
        """By slot: the round in which it was last emptied.  A round ends when the notes are taken."""

    def __len__(self) -> int:
        return len(self._notes)

    def grow(self, count: int) -> None:
        """There are so many more slots."""
        self._removed_in.frombytes(bytes(count * self._removed_in.itemsize))

    def inserted(self, slots: list[int], facts: InsertFacts) -> None:
        self._notes.append(Inserted(slots, facts))

    def accessed(self, slots: list[int], facts: AccessFacts) -> None:
        if len(self._notes) < NOTES_MAX:
            self._notes.append(Accessed(slots, facts))

    def removed(self, slots: list[int]) -> None:
        if not slots:
            return
        self._notes.append(Removed(slots))
        removed_in, this = self._removed_in, self._round
        for slot in slots:
            removed_in[slot] = this

    def old(self, slots: Sequence[int]) -> list[int]:
        """Those of these slots that were not emptied since the notes were last taken.  Of the others, what the policy
        says is about an object that is gone, even if the slot holds another one by now."""
        removed_in, this = self._removed_in, self._round
        return [slot for slot in slots if removed_in[slot] != this]

    def take(self) -> list[Note]:
        taken, self._notes = self._notes, []
        self._round = (self._round + 1) % _ROUNDS
        return taken
