"""Arrays indexed by slot number that grow together."""

from __future__ import annotations

from array import array
from typing import Any


class Columns:
    """One array per fact about a slot.  Who asks for the same name shares the array, so that algorithms which run side
    by side, one for each slot size, do not each keep one as long as the arena has slots."""

    def __init__(self) -> None:
        self._rows = 0
        self._numbers: dict[str, array[int]] = {}
        self._objects: dict[str, list[Any]] = {}

    def numbers(self, name: str, typecode: str) -> array[int]:
        """Integers of an array typecode; 0 where nothing was written."""
        if name not in self._numbers:
            self._numbers[name] = array(typecode, bytes(self._rows * array(typecode).itemsize))
        return self._numbers[name]

    def objects(self, name: str) -> list[Any]:
        """References; None where nothing was written."""
        return self._objects.setdefault(name, [None] * self._rows)

    def make_room(self, rows: int) -> None:
        """Slots below `rows` have a place.  Doubles, so that growing costs nothing per slot in the end."""
        if rows <= self._rows:
            return
        grow = max(rows - self._rows, self._rows)
        for numbers in self._numbers.values():
            numbers.frombytes(bytes(grow * numbers.itemsize))
        for objects in self._objects.values():
            objects.extend([None] * grow)
        self._rows += grow

    def __len__(self) -> int:
        return self._rows
