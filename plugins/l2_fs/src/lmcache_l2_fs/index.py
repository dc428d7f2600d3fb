"""Which objects there are, how large they are, and how much room is left."""

from __future__ import annotations

import threading


class ObjectIndex:
    """Object id to file size, and the bytes that writers have reserved.  Any thread; its lock covers no I/O."""

    def __init__(self, capacity_bytes: int | None) -> None:
        self.capacity_bytes = capacity_bytes
        self._lock = threading.Lock()
        # Guarded by _lock.  used is the sum of the sizes.
        self._sizes: dict[bytes, int] = {}
        self._used_bytes = 0
        self._reserved_bytes = 0

    def __contains__(self, object_id: bytes) -> bool:
        return object_id in self._sizes

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def reserve(self, size: int) -> bool:
        """Set room aside before writing.  False where used, reserved and this together exceed the capacity."""
        with self._lock:
            wanted = self._used_bytes + self._reserved_bytes + size
            if self.capacity_bytes is not None and wanted > self.capacity_bytes:
                return False
            self._reserved_bytes += size
            return True

    def commit(self, object_id: bytes, size: int) -> None:
        """The file that was reserved for is there."""
        with self._lock:
            self._reserved_bytes -= size
            self._put(object_id, size)

    def release(self, size: int) -> None:
        """The file that was reserved for has not come to be."""
        with self._lock:
            self._reserved_bytes -= size

    def put(self, object_id: bytes, size: int) -> None:
        """There is a file of this size, whether there is room for it or not."""
        with self._lock:
            self._put(object_id, size)

    def drop(self, object_id: bytes) -> bool:
        """It is gone, or not to be offered.  False where it was not known."""
        with self._lock:
            size = self._sizes.pop(object_id, None)
            if size is None:
                return False
            self._used_bytes -= size
            return True

    def _put(self, object_id: bytes, size: int) -> None:
        self._used_bytes += size - self._sizes.get(object_id, 0)
        self._sizes[object_id] = size
