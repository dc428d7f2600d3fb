"""Which objects there are, how large they are, and how much room is left."""

from __future__ import annotations

import threading

from lmcache_core import ByteLedger


class ObjectIndex:
    """Object id to file size, and the room that is left for more.  Any thread; its lock covers no I/O."""

    def __init__(self, capacity_bytes: int | None) -> None:
        self.room = ByteLedger(capacity_bytes)
        self._lock = threading.Lock()  # guards the one below, whose sum is what is used of the room
        self._sizes: dict[bytes, int] = {}

    def __contains__(self, object_id: bytes) -> bool:
        return object_id in self._sizes

    def __len__(self) -> int:
        return len(self._sizes)

    def commit(self, object_id: bytes, size: int) -> None:
        """The file is there for which this room was reserved."""
        with self._lock:
            self.room.commit(size)
            self._replace(object_id, size)

    def put(self, object_id: bytes, size: int) -> None:
        """There is a file of this size, whether there is room for it or not."""
        with self._lock:
            if self._sizes.get(object_id) != size:
                self.room.adopt(size)
                self._replace(object_id, size)

    def drop(self, object_id: bytes) -> bool:
        """It is gone, or not to be offered.  False where it was not known."""
        with self._lock:
            size = self._sizes.pop(object_id, None)
            if size is None:
                return False
            self.room.drop(size)
            return True

    def _replace(self, object_id: bytes, size: int) -> None:
        # The new size was entered before: a writer must never see room that is not there.
        if (old := self._sizes.get(object_id)) is not None:
            self.room.drop(old)
        self._sizes[object_id] = size
