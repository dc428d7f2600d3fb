"""Keys of objects that were evicted not long ago."""

from __future__ import annotations

from collections import OrderedDict


class GhostKeys:
    """From the oldest to the newest.  The caller that adds also trims: it never has more than the last `trim` allowed and
    what was added since."""

    def __init__(self) -> None:
        self._keys: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: bytes) -> None:
        """Make it the newest."""
        self._keys[key] = None
        self._keys.move_to_end(key)

    def take(self, key: bytes | None) -> bool:
        """Was it there?  It is not afterwards."""
        if key is None or key not in self._keys:
            return False
        del self._keys[key]
        return True

    def trim(self, count: int) -> None:
        """Forget the oldest beyond `count`."""
        while len(self._keys) > max(count, 0):
            self._keys.popitem(last=False)
