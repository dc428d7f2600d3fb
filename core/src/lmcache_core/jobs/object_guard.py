"""Who may touch which object of an adapter: pins, exclusive changes, and objects that are not to be offered."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

CONDEMNED_MAX: Final = 65_536
"""So many rejected objects are remembered; an older one is found out again by its next load."""


class ObjectGuard:
    """Book-keeping by object id.  One lock, held for dictionary operations only; waiting is on single objects."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # All below is guarded by _changed.
        self._pins: dict[bytes, int] = {}
        self._changing: set[bytes] = set()
        self._removing: set[bytes] = set()
        self._condemned: dict[bytes, None] = {}

    def pin(self, object_id: bytes) -> bool:
        """Count one pin.  False, and no pin, where the object is being removed or was condemned."""
        with self._changed:
            if object_id in self._removing or object_id in self._condemned:
                return False
            self._pins[object_id] = self._pins.get(object_id, 0) + 1
            return True

    def unpin(self, object_ids: Iterable[bytes]) -> None:
        """Take one pin from each that has one."""
        with self._changed:
            for object_id in object_ids:
                count = self._pins.get(object_id, 0)
                if count > 1:
                    self._pins[object_id] = count - 1
                elif count:
                    del self._pins[object_id]

    @contextmanager
    def changing(self, object_id: bytes) -> Iterator[None]:
        """Wait until nobody else changes this object, and keep others from it."""
        with self._changed:
            while object_id in self._changing:
                self._changed.wait()
            self._changing.add(object_id)
        try:
            yield
        finally:
            with self._changed:
                self._changing.discard(object_id)
                self._changed.notify_all()

    @contextmanager
    def removing(self, object_id: bytes) -> Iterator[bool]:
        """Yields whether the object may be removed, which is while it has no pin; new pins are refused meanwhile."""
        with self.changing(object_id):
            with self._changed:
                free = object_id not in self._pins
                if free:
                    self._removing.add(object_id)
            try:
                yield free
            finally:
                with self._changed:
                    self._removing.discard(object_id)

    def condemn(self, object_id: bytes) -> bool:
        """Do not offer this object any more.  False when that is so already."""
        with self._changed:
            if object_id in self._condemned:
                return False
            if len(self._condemned) >= CONDEMNED_MAX:
                del self._condemned[next(iter(self._condemned))]
            self._condemned[object_id] = None
            return True

    def absolve(self, object_id: bytes) -> None:
        """Another object may take its place."""
        with self._changed:
            self._condemned.pop(object_id, None)

    def is_condemned(self, object_id: bytes) -> bool:
        return object_id in self._condemned
