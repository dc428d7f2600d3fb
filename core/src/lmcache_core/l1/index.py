"""Key spaces by number.

Within L1 an object is known by the number of its space and its chunk hash; where both stand together, as the identity
that policies see, they are a key of 36 bytes.  Not synchronised: the caller holds the cache's lock.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from lmcache_core.model.keys import KeySpace

_NUMBER = struct.Struct("<I")
SPACES_KEPT = 65536
"""Spaces that hold nothing are forgotten beyond this many."""


@dataclass(slots=True)
class SpaceRecord:
    """One key space as L1 knows it."""

    space: KeySpace
    number: int
    prefix: bytes
    """The number, as keys begin with it."""
    payload_bytes: int
    objects: int = 0
    """Slots that hold or are being filled with objects of this space."""


class Spaces:
    """Interns key spaces.  Numbers are never used twice, so a forgotten space cannot be taken for another."""

    def __init__(self) -> None:
        self._by_space: dict[KeySpace, SpaceRecord] = {}
        self._by_number: dict[int, SpaceRecord] = {}
        self._by_salt: dict[str, dict[int, SpaceRecord]] = {}
        self._next = 0
        self._left = 0
        """As many as were left when empty ones were last looked for."""

    def __len__(self) -> int:
        return len(self._by_space)

    def find(self, space: KeySpace) -> SpaceRecord | None:
        return self._by_space.get(space)

    def intern(self, space: KeySpace, payload_bytes: int) -> SpaceRecord:
        record = self._by_space.get(space)
        if record is None:
            # Twice as many as were left: where most hold something, not every newcomer has to wait for a look at all.
            if len(self._by_space) >= max(SPACES_KEPT, 2 * self._left):
                self._forget_empty()
            record = SpaceRecord(space, self._next, _NUMBER.pack(self._next), payload_bytes)
            self._next += 1
            self._by_space[space] = record
            self._know(record)
        return record

    def adopt(self, record: SpaceRecord) -> None:
        """Objects are about to be placed in this space; it may have been forgotten since it was interned."""
        self._know(record)
        self._by_space.setdefault(record.space, record)

    def numbered(self, number: int) -> SpaceRecord:
        """The space of this number, which must hold something."""
        return self._by_number[number]

    def everything(self) -> Iterable[SpaceRecord]:
        return self._by_number.values()

    def of_salt(self, salt: str) -> Iterable[SpaceRecord]:
        """The spaces of one salt, a few: one for each of its models, shards and layouts."""
        return self._by_salt.get(salt, {}).values()

    def _know(self, record: SpaceRecord) -> None:
        self._by_number[record.number] = record
        self._by_salt.setdefault(record.space.cache_salt, {})[record.number] = record

    def _forget_empty(self) -> None:
        for record in list(self._by_number.values()):
            if record.objects == 0:
                del self._by_number[record.number]
                self._forget_salt_of(record)
                if self._by_space.get(record.space) is record:
                    del self._by_space[record.space]
        self._left = len(self._by_space)

    def _forget_salt_of(self, record: SpaceRecord) -> None:
        spaces = self._by_salt[record.space.cache_salt]
        del spaces[record.number]
        if not spaces:
            del self._by_salt[record.space.cache_salt]
