"""Doubly linked lists over slot numbers, kept in arrays that all lists of a policy share.

    older[s] <- s -> newer[s]        END stops the list on both sides
    owner[s]                         0: in no list, else the number of its list, counted from 1

A slot is in one list at most.  It costs 12 bytes, and each step is a few array accesses however many slots there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lmcache_policies.structures.columns import Columns

END: Final = -1


class SlotLists:
    """Lists are named by small integers; each runs from its oldest slot to its newest.  Slots that are appended must
    have room in the columns."""

    def __init__(self, columns: Columns) -> None:
        self.older = columns.numbers("older", "i")
        self.newer = columns.numbers("newer", "i")
        self._owner = columns.numbers("list", "I")
        self._oldest: list[int] = []
        self._newest: list[int] = []
        self._length: list[int] = []
        self._unused: list[int] = []

    def new(self) -> int:
        """An empty list."""
        if self._unused:
            return self._unused.pop()
        self._oldest.append(END)
        self._newest.append(END)
        self._length.append(0)
        return len(self._length) - 1

    def drop(self, number: int) -> None:
        """The list is empty, and its number may be given to another one."""
        assert not self._length[number], "a list that is dropped must be empty"
        self._unused.append(number)

    def list_of(self, slot: int) -> int:
        """The list that the slot is in; END for none."""
        return self._owner[slot] - 1

    def length(self, number: int) -> int:
        return self._length[number]

    def oldest(self, number: int) -> int:
        """END when it is empty."""
        return self._oldest[number]

    def newest(self, number: int) -> int:
        """END when it is empty."""
        return self._newest[number]

    def append(self, slot: int, number: int) -> None:
        """Make it the newest of a list; it is in none so far."""
        last = self._newest[number]
        self.older[slot] = last
        self.newer[slot] = END
        self._owner[slot] = number + 1
        self._newest[number] = slot
        self._length[number] += 1
        if last == END:
            self._oldest[number] = slot
        else:
            self.newer[last] = slot

    def remove(self, slot: int) -> int:
        """Take it out of its list.  Returns which one that was."""
        number = self._owner[slot] - 1
        older, newer = self.older[slot], self.newer[slot]
        if older == END:
            self._oldest[number] = newer
        else:
            self.newer[older] = newer
        if newer == END:
            self._newest[number] = older
        else:
            self.older[newer] = older
        self._owner[slot] = 0
        self._length[number] -= 1
        return number

    def move(self, slot: int, number: int) -> None:
        """Make it the newest of a list, which may be the one that it is in."""
        self.remove(slot)
        self.append(slot, number)

    def from_oldest(self, number: int) -> Iterator[int]:
        """While it runs, the list may only grow at its newest end."""
        slot = self._oldest[number]
        while slot != END:
            yield slot
            slot = self.newer[slot]

    def from_newest(self, number: int) -> Iterator[int]:
        """While it runs, the list must not change."""
        slot = self._newest[number]
        while slot != END:
            yield slot
            slot = self.older[slot]
