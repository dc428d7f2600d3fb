"""The objects of one adapter, numbered for an eviction policy."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator

from lmcache_core.model.keys import KeySpace, ObjectKey

_SPACE = struct.Struct("<I")


class _Space:
    """A key space, and how many objects of it are known."""

    __slots__ = ("object_bytes", "objects", "prefix", "space")

    def __init__(self, space: KeySpace, number: int) -> None:
        self.space = space
        self.prefix = _SPACE.pack(number)
        self.objects = 0
        self.object_bytes = 0


class NumberedObjects:
    """Each object has a small integer, which is reused after its removal.  About 200 bytes per object, none of which the
    garbage collector walks.  One thread."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._ids: list[bytes | None] = []
        self._sizes = array("Q")
        self._free = array("L")
        self._spaces: list[_Space] = []
        self._space_numbers: dict[KeySpace, int] = {}
        self._free_spaces: list[int] = []
        self.known_bytes = 0

    def __len__(self) -> int:
        return len(self._numbers)

    def find(self, key: ObjectKey) -> int:
        """-1 where it is not known."""
        space = self._space_numbers.get(key.space)
        return -1 if space is None else self._numbers.get(self._spaces[space].prefix + key.chunk_hash, -1)

    def add(self, key: ObjectKey, size: int) -> int:
        """The number of an object that was not known."""
        space = self._intern(key.space)
        number = self._free.pop() if self._free else len(self._ids)
        name = space.prefix + key.chunk_hash
        if number == len(self._ids):
            self._ids.append(name)
            self._sizes.append(size)
        else:
            self._ids[number] = name
            self._sizes[number] = size
        self._numbers[name] = number
        space.objects += 1
        space.object_bytes = size
        self.known_bytes += size
        return number

    def remove(self, number: int) -> None:
        name = self._name(number)
        del self._numbers[name]
        self._ids[number] = None
        self._free.append(number)
        self.known_bytes -= self._sizes[number]
        at = _SPACE.unpack_from(name)[0]
        space = self._spaces[at]
        space.objects -= 1
        if not space.objects:
            del self._space_numbers[space.space]
            self._free_spaces.append(at)

    def is_known(self, number: int) -> bool:
        return 0 <= number < len(self._ids) and self._ids[number] is not None

    def key(self, number: int) -> ObjectKey:
        name = self._name(number)
        return ObjectKey(self._spaces[_SPACE.unpack_from(name)[0]].space, name[_SPACE.size :])

    def everything(self) -> Iterator[tuple[int, ObjectKey, int]]:
        """Number, key and size of each; nothing may change meanwhile."""
        for number in self._numbers.values():
            yield number, self.key(number), self.size(number)

    def size(self, number: int) -> int:
        return self._sizes[number]

    def usual_size(self, space: KeySpace) -> int | None:
        """The objects of one space are of one size: that of the last one that came with it."""
        number = self._space_numbers.get(space)
        return None if number is None else self._spaces[number].object_bytes

    def _name(self, number: int) -> bytes:
        name = self._ids[number]
        assert name is not None, f"object {number} is not known"
        return name

    def _intern(self, space: KeySpace) -> _Space:
        number = self._space_numbers.get(space)
        if number is None:
            number = self._free_spaces.pop() if self._free_spaces else len(self._spaces)
            entry = _Space(space, number)
            if number == len(self._spaces):
                self._spaces.append(entry)
            else:
                self._spaces[number] = entry
            self._space_numbers[space] = number
        return self._spaces[number]
