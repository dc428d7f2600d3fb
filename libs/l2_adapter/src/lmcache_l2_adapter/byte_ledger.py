"""Accounting of used and reserved bytes against a capacity."""

from __future__ import annotations

import threading


class ByteLedger:
    """Counts bytes that are kept (used) and bytes that writers were promised (reserved).

    A writer reserves before it writes, then commits or releases; what was committed or adopted is dropped when it is
    gone.  Used and reserved together never exceed the capacity by `reserve`, however many write at once.  Any thread;
    never blocks.  An amount that was never entered is a fault of the caller and raises ValueError, changing nothing.
    """

    def __init__(self, capacity_bytes: int | None = None) -> None:
        """None: no limit."""
        if capacity_bytes is not None and capacity_bytes < 0:
            raise ValueError(f"a capacity of {capacity_bytes} bytes; give 0 or more, or None for no limit")
        self.capacity_bytes = capacity_bytes
        self._lock = threading.Lock()  # guards the two below
        self._used = 0
        self._reserved = 0

    @property
    def used_bytes(self) -> int:
        return self._used

    @property
    def reserved_bytes(self) -> int:
        return self._reserved

    def reserve(self, size: int) -> bool:
        """Promise `size` bytes to a writer.  False, and nothing is promised, where there is no room for them."""
        with self._lock:
            _not_negative(size)
            if self.capacity_bytes is not None and self._used + self._reserved + size > self.capacity_bytes:
                return False
            self._reserved += size
            return True

    def commit(self, size: int) -> None:
        """Turn reserved bytes into used ones."""
        with self._lock:
            self._take_reserved(size)
            self._used += size

    def release(self, size: int) -> None:
        """Release reserved bytes that were not written."""
        with self._lock:
            self._take_reserved(size)

    def adopt(self, size: int) -> None:
        """This is kept already, whether there is room for it or not: what was found when a backend was opened."""
        with self._lock:
            _not_negative(size)
            self._used += size

    def drop(self, size: int) -> None:
        """Release used bytes."""
        with self._lock:
            _not_negative(size)
            if size > self._used:
                raise ValueError(f"{size} bytes are dropped where {self._used} are used")
            self._used -= size

    def _take_reserved(self, size: int) -> None:
        _not_negative(size)
        if size > self._reserved:
            raise ValueError(f"{size} bytes are taken from a reservation of {self._reserved}")
        self._reserved -= size


def _not_negative(size: int) -> None:
    if size < 0:
        raise ValueError(f"a size of {size} bytes")
