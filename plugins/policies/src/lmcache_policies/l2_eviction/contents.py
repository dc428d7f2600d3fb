"""The contents of one adapter as its eviction policy knows them: numbered objects."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator, Sequence

from lmcache_core import (
    AccessFacts,
    EvictionDemand,
    EvictionPolicy,
    InsertFacts,
    KeySpace,
    L2EvictionContext,
    ObjectKey,
    RequestFacts,
)

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


class L2Contents:
    """Numbers the adapter's objects and notifies the policy of them.  One thread, which owns the policy."""

    def __init__(self, context: L2EvictionContext) -> None:
        self._adapter, self._clock = context.adapter, context.clock
        self._policy = context.policy
        self._policy.take_over = self._take_over
        self.objects = NumberedObjects()

    def learn(self, keys: Sequence[ObjectKey], size: int | None) -> tuple[list[int], list[int]]:
        """The adapter has these: new objects, or accesses to known ones.  Without a size: what they usually have.  Returns
        the numbers of objects that were known, and those that are out of use because an object changed its size."""
        facts = RequestFacts(seconds=self._clock.monotonic())
        known: list[int] = []
        replaced: list[int] = []
        new: dict[tuple[KeySpace, int], list[ObjectKey]] = {}
        for key in dict.fromkeys(keys):
            number = self.objects.find(key)
            if number < 0:
                new.setdefault((key.space, size or self._usual_size(key)), []).append(key)
            elif size is not None and size != self.objects.size(number):
                replaced.append(number)
                self.forget([number])
                new.setdefault((key.space, size), []).append(key)
            else:
                known.append(number)
        if known:
            self._policy.call("on_access", lambda policy: policy.on_access(known, AccessFacts(0, facts)), None)
        for (space, object_bytes), group in new.items():
            numbers = [self.objects.add(key, object_bytes) for key in group]
            identities = tuple(key.chunk_hash for key in group)
            inserted = InsertFacts(object_bytes, space, 0, identities, facts)
            self._insert(numbers, inserted)
        return known, replaced

    def forget(self, numbers: Sequence[int]) -> None:
        """The adapter has these no more."""
        for number in numbers:
            self.objects.remove(number)
        if numbers:
            self._policy.call("on_remove", lambda policy: policy.on_remove(numbers), None)

    def victims(self, wanted_bytes: int, may_evict: Callable[[int], bool]) -> list[int]:
        """Victims of the policy, each once, and only those that may be evicted."""

        def victims(policy: EvictionPolicy) -> list[int]:
            named = policy.victims(EvictionDemand(wanted_bytes, {}), may_evict)
            return [number for number in dict.fromkeys(named) if may_evict(number)]

        return self._policy.call("victims", victims, [])

    def _insert(self, numbers: Sequence[int], facts: InsertFacts) -> None:
        self._policy.call("on_insert", lambda policy: policy.on_insert(numbers, facts), None)

    def _usual_size(self, key: ObjectKey) -> int:
        if (size := self.objects.usual_size(key.space)) is not None:
            return size
        usage = self._adapter.usage()
        return max(1, usage.used_bytes // usage.objects) if usage and usage.objects > 0 else 1

    def _take_over(self, built_in: EvictionPolicy) -> None:
        """The built-in policy learns all objects."""
        self._policy.take(built_in, because_it_failed=True)
        facts = RequestFacts(seconds=self._clock.monotonic())
        for number, key, size in self.objects.everything():
            built_in.on_insert([number], InsertFacts(size, key.space, 0, (key.chunk_hash,), facts))
