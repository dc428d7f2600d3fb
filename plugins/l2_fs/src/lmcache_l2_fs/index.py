"""Which objects there are, how large they are, and how much room is left."""

from __future__ import annotations

import threading
from typing import NamedTuple

from lmcache_core import ByteLedger


class Sighting(NamedTuple):
    """A file as it was last seen.  Two of the same size are two sightings: compare with `is`."""

    size: int


class ObjectIndex:
    """Object id to file size, and the room that is left for more.  Any thread; its lock covers no I/O."""

    def __init__(self, capacity_bytes: int | None) -> None:
        self.room = ByteLedger(capacity_bytes)
        self._lock = threading.Lock()  # guards the one below, whose sum is what is used of the room
        self._files: dict[bytes, Sighting] = {}

    def __contains__(self, object_id: bytes) -> bool:
        return object_id in self._files

    def __len__(self) -> int:
        return len(self._files)

    def seen(self, object_id: bytes) -> Sighting | None:
        """The newest sighting."""
        return self._files.get(object_id)

    def commit(self, object_id: bytes, size: int) -> None:
        """The file is there for which this room was reserved."""
        with self._lock:
            self.room.commit(size)
            self._replace(object_id, size)

    def put(self, object_id: bytes, size: int) -> None:
        """There is a file of this size, whether there is room for it or not."""
        with self._lock:
            old = self._files.get(object_id)
            if old is None or old.size != size:
                self.room.adopt(size)
                self._replace(object_id, size)
            else:  # nothing is entered twice, not even for a moment: a writer would miss the room
                self._files[object_id] = Sighting(size)

    def drop(self, object_id: bytes) -> bool:
        """It is gone, or not to be offered.  False where it was not known."""
        with self._lock:
            return self._drop(object_id)

    def drop_if_not_seen_since(self, object_id: bytes, sighting: Sighting | None) -> bool:
        """There was no file after this sighting.  False, and nothing is dropped, where there is a newer one."""
        with self._lock:
            return self._files.get(object_id) is sighting and self._drop(object_id)

    def _drop(self, object_id: bytes) -> bool:
        file = self._files.pop(object_id, None)
        if file is None:
            return False
        self.room.drop(file.size)
        return True

    def _replace(self, object_id: bytes, size: int) -> None:
        # The new size was entered before: a writer must never see room that is not there.
        if (old := self._files.get(object_id)) is not None:
            self.room.drop(old.size)
        self._files[object_id] = Sighting(size)
