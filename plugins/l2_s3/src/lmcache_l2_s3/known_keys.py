"""Keys of objects that this server has stored or read, so that a listing need not fetch their headers."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

from lmcache_core import ObjectKey


class KnownKeys:
    """By object id, the last that were reported.  Any thread.  About 200 B each."""

    def __init__(self, entries_max: int) -> None:
        self._max: Final = entries_max
        self._lock: Final = threading.Lock()
        self._keys: Final = OrderedDict[bytes, ObjectKey]()

    def note(self, key: ObjectKey) -> None:
        with self._lock:
            object_id = key.object_id
            self._keys[object_id] = key
            self._keys.move_to_end(object_id)
            if len(self._keys) > self._max:
                self._keys.popitem(last=False)

    def forget(self, key: ObjectKey) -> None:
        with self._lock:
            self._keys.pop(key.object_id, None)

    def get(self, object_id: bytes) -> ObjectKey | None:
        return self._keys.get(object_id)
