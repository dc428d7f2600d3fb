"""The bytes behind an adapter's back."""

from __future__ import annotations

from abc import ABC, abstractmethod

from lmcache_core.model.keys import ObjectKey


class Media(ABC):
    """Write the three for your backend; the faults follow from them."""

    @abstractmethod
    def read(self, key: ObjectKey) -> bytes | None:
        """The bytes in the place of this object; None: nothing."""

    @abstractmethod
    def write(self, key: ObjectKey, data: bytes) -> None:
        """Put these bytes in the place of this object, and replace what is there."""

    @abstractmethod
    def remove(self, key: ObjectKey) -> None:
        """Remove what is in its place, if anything is."""

    def truncate(self, key: ObjectKey, length: int) -> None:
        self.write(key, self._bytes(key)[:length])

    def extend(self, key: ObjectKey, more: bytes) -> None:
        self.write(key, self._bytes(key) + more)

    def flip(self, key: ObjectKey, at: int) -> None:
        """Change one bit of byte `at`."""
        data = bytearray(self._bytes(key))
        data[at] ^= 0x10
        self.write(key, bytes(data))

    def swap(self, one: ObjectKey, other: ObjectKey) -> None:
        first, second = self._bytes(one), self._bytes(other)
        self.write(one, second)
        self.write(other, first)

    def _bytes(self, key: ObjectKey) -> bytes:
        data = self.read(key)
        assert data is not None, f"the medium has nothing in the place of {key.object_id.hex()}"
        return data
