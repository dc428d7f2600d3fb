"""What the eviction policy has to be told, written down on the request path and read off it.

The policy belongs to the eviction controller's thread.  The cache only appends to a list here, once per batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from lmcache_core.contracts.policies import AccessFacts, InsertFacts

NOTES_MAX = 100_000
"""Accesses are no longer written down beyond this many notes; a policy that far behind has lost nothing it could use."""


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
        self._removed: set[int] = set()

    def __len__(self) -> int:
        return len(self._notes)

    def inserted(self, slots: list[int], facts: InsertFacts) -> None:
        self._notes.append(Inserted(slots, facts))

    def accessed(self, slots: list[int], facts: AccessFacts) -> None:
        if len(self._notes) < NOTES_MAX:
            self._notes.append(Accessed(slots, facts))

    def removed(self, slots: list[int]) -> None:
        if not slots:
            return
        self._notes.append(Removed(slots))
        self._removed.update(slots)

    def is_news(self, slot: int) -> bool:
        """Was this slot emptied since the notes were last taken?  Then what the policy says about it is about an
        object that is gone, even if the slot holds another one by now."""
        return slot in self._removed

    def take(self) -> list[Note]:
        taken, self._notes = self._notes, []
        self._removed.clear()
        return taken
