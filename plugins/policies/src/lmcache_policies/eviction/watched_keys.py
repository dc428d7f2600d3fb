"""The last requests for a sample of the keys, in a ring; an entry dies when its key is asked for again.

What lives is ordered by recency, so the newest entries are what a least recently used cache of the watched keys would
hold: that shadow is a stretch of the ring, and costs nothing more.

    ring      ... dead  live  dead  live  live  dead  live ...
                        oldest of the shadow            head
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final

_DEAD: Final = 255
_END: Final = -1


class WatchedKeys:
    """Keys are found through chains in arrays: 29 bytes for each entry."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._seconds = array("d", bytes(8 * size))
        self._kinds = bytearray([_DEAD]) * size
        self._words = array("Q", bytes(8 * size))
        self._next = array("i", [_END]) * size
        self._chains = array("i", [_END]) * (2 * size)
        self._mask = 2 * size - 1
        self._head = size - 1
        self._shadow = 0
        """Entries of the shadow up to the head, dead ones included."""
        self._shadow_live = 0

    def find(self, word: int) -> int:
        """The live entry of a key; -1 for none."""
        place = self._chains[word & self._mask]
        while place != _END and self._words[place] != word:
            place = self._next[place]
        return place

    def read(self, place: int) -> tuple[float, int]:
        """When a live entry was added, and with which kind."""
        return self._seconds[place], self._kinds[place]

    def kill(self, place: int) -> bool:
        """A live entry dies.  Was it in the shadow?"""
        chain = self._words[place] & self._mask
        before, at = _END, self._chains[chain]
        while at != place:
            before, at = at, self._next[at]
        if before == _END:
            self._chains[chain] = self._next[place]
        else:
            self._next[before] = self._next[place]
        self._kinds[place] = _DEAD
        if shadowed := (self._head - place) % self.size < self._shadow:
            self._shadow_live -= 1
        return shadowed

    def reach(self) -> int:
        """The live entry that the next `add` overwrites; -1 for none."""
        place = (self._head + 1) % self.size
        return _END if self._kinds[place] == _DEAD else place

    def add(self, word: int, kind: int, seconds: float, shadow_max: int) -> None:
        """Make the key the newest; it has no live entry, and the one to overwrite is dead.  `shadow_max` is how many
        watched keys a least recently used cache would hold now."""
        head = self._head = (self._head + 1) % self.size
        self._seconds[head], self._kinds[head], self._words[head] = seconds, kind, word
        chain = word & self._mask
        self._next[head], self._chains[chain] = self._chains[chain], head
        self._shadow = min(self._shadow + 1, self.size)
        self._shadow_live += 1
        while self._shadow_live > shadow_max:
            self._shadow_live -= self._kinds[self._shadow_oldest()] != _DEAD
            self._shadow -= 1

    def shadow_since(self) -> float:
        """When the oldest entry of the shadow, which has one, was added."""
        return self._seconds[self._shadow_oldest()]

    def grow(self) -> bool:
        """Double, if that takes no moving: where the newest is in the last place."""
        if self._head != self.size - 1:
            return False
        self._seconds.frombytes(bytes(8 * self.size))
        self._kinds += bytearray([_DEAD]) * self.size
        self._words.frombytes(bytes(8 * self.size))
        self._next += array("i", [_END]) * self.size
        self.size *= 2
        return True

    def live(self, first: int, end: int) -> list[tuple[int, float]]:
        """Kind and seconds of what lives in places `first` to `end`."""
        rows = zip(self._kinds[first:end], self._seconds[first:end], strict=True)
        return [(kind, seconds) for kind, seconds in rows if kind != _DEAD]

    def thin_out(self, first: int, end: int, is_watched: Callable[[int], bool]) -> None:
        """In places `first` to `end`, let die what is not to be watched any more."""
        for place, word in enumerate(self._words[first:end], first):
            if self._kinds[place] != _DEAD and not is_watched(word):
                self.kill(place)

    def _shadow_oldest(self) -> int:
        return (self._head - self._shadow + 1) % self.size
