"""Slots whose header page may still say what is not so."""

from __future__ import annotations


class Suspects:
    """Each slot that failed to be written or cleared, and the one object that it may still name on the medium."""

    def __init__(self) -> None:
        self._named: dict[int, bytes] = {}
        self._slots: dict[bytes, set[int]] = {}

    def __len__(self) -> int:
        return len(self._named)

    def add(self, slot: int, object_id: bytes) -> None:
        """It was blank, or named this object, before it failed."""
        self.cleared(slot)
        self._named[slot] = object_id
        self._slots.setdefault(object_id, set()).add(slot)

    def cleared(self, slot: int) -> None:
        """It names nothing any more."""
        object_id = self._named.pop(slot, None)
        if object_id is None:
            return
        slots = self._slots[object_id]
        slots.discard(slot)
        if not slots:
            del self._slots[object_id]

    def of(self, object_id: bytes) -> tuple[int, ...]:
        """The slots that may name this object."""
        return tuple(self._slots.get(object_id, ()))
