"""The order of last use in pure Python: a log of touches, in which each slot's last mention counts.

    log[p]     the slot that was touched
    place[s]   where the last mention of slot s is; every other one is dead

A touch appends to the log and sets the place, which takes a tenth of the time of moving an item of a linked list.  When
two thirds of the log are dead, what lives is moved to its front, a few entries with each call:

    0 ...... packed ...... swept ...... len(log)
      moved          dead         not looked at yet
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

_NOWHERE: Final = 2**32 - 1
_DEAD_SHARE: Final = 3
_SLACK: Final = 1024
"""Entries that a log may have whatever lives in it."""
_SWEPT_PER_TOUCH: Final = 4


class PureRecency:
    """Implements `interfaces.Recency`."""

    def __init__(self) -> None:
        self._log = array("I")
        self._place = array("I")
        self._group = array("H")
        self._known = 0
        self._packed = 0
        self._swept = 0
        self._first: dict[int, int] = {}
        """Nothing of this class (0: of any) lives before this position."""

    def insert(self, slots: Sequence[int], group: int) -> None:
        if not slots:
            return
        self._make_room(max(slots) + 1)
        groups = self._group
        for slot in slots:
            if not groups[slot]:
                self._known += 1
            groups[slot] = group
        self._append(slots)

    def touch(self, slots: Sequence[int]) -> None:
        groups, size = self._group, len(self._group)
        try:
            all_known = all(map(groups.__getitem__, slots))
        except IndexError:
            all_known = False
        self._append(slots if all_known else [slot for slot in slots if slot < size and groups[slot]])

    def remove(self, slots: Sequence[int]) -> None:
        groups, places, size = self._group, self._place, len(self._group)
        for slot in slots:
            if slot < size and groups[slot]:
                groups[slot] = 0
                places[slot] = _NOWHERE
                self._known -= 1

    def group(self, slot: int) -> int:
        return self._group[slot] if slot < len(self._group) else 0

    def scan(self, group: int, position: int, steps: int) -> tuple[list[int], int]:
        log, places, groups = self._log, self._place, self._group
        first = self._first.get(group, 0)
        begin = max(position, first)
        if self._packed <= begin < self._swept:
            begin = self._swept
        end = min(begin + steps, self._packed if begin < self._packed else len(log))
        slots = [
            slot
            for place, slot in enumerate(log[begin:end], begin)
            if places[slot] == place and (not group or groups[slot] == group)
        ]
        if position <= first:
            self._first[group] = places[slots[0]] if slots else end
        return slots, end if end < len(log) else -1

    def _append(self, slots: Sequence[int]) -> None:
        log, places = self._log, self._place
        newest_last = list(reversed(slots))
        begin = len(log)
        log.extend(array("I", newest_last))
        for place, slot in enumerate(newest_last, begin):
            places[slot] = place
        if self._swept or len(log) > _DEAD_SHARE * self._known + _SLACK:
            self._sweep(_SWEPT_PER_TOUCH * len(newest_last) + 1)

    def _sweep(self, steps: int) -> None:
        """Look at `steps` more entries and move those that live."""
        log, places = self._log, self._place
        begin, packed = self._swept, self._packed
        end = min(begin + steps, len(log))
        live = [slot for place, slot in enumerate(log[begin:end], begin) if places[slot] == place]
        log[packed : packed + len(live)] = array("I", live)
        for place, slot in enumerate(live, packed):
            places[slot] = place
        for group in {0, *map(self._group.__getitem__, live)} if live else ():
            self._first[group] = min(self._first.get(group, 0), packed)
        self._packed, self._swept = packed + len(live), end
        if end == len(log):
            del log[self._packed :]
            for group, first in self._first.items():
                self._first[group] = min(first, len(log))
            self._packed = self._swept = 0

    def _make_room(self, count: int) -> None:
        """Slots below `count` can be tracked.  Doubles, so that growing costs nothing per slot in the end."""
        if (missing := count - len(self._group)) <= 0:
            return
        grow = max(missing, len(self._group))
        self._group.frombytes(bytes(grow * self._group.itemsize))
        self._place.extend(array("I", [_NOWHERE]) * grow)
