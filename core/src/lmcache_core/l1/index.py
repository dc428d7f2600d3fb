"""Which object is where: key to slot, with keys small enough for a dictionary of a million.

A key is 36 bytes: the number of its key space and the chunk hash.  Bytes objects keep their hash and are not walked by
the garbage collector.  Not synchronised: the caller holds the cache's lock.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from lmcache_core.model.keys import KeySpace

_NUMBER = struct.Struct("<I")
PREFIX_BYTES = _NUMBER.size
SPACES_KEPT = 65536
"""Spaces that hold nothing are forgotten beyond this many."""


@dataclass(slots=True)
class SpaceRecord:
    """One key space as L1 knows it."""

    space: KeySpace
    prefix: bytes
    payload_bytes: int
    objects: int = 0
    """Slots that hold or are being filled with objects of this space."""


class Spaces:
    """Interns key spaces.  Numbers are never used twice, so a forgotten space cannot be taken for another."""

    def __init__(self) -> None:
        self._by_space: dict[KeySpace, SpaceRecord] = {}
        self._by_prefix: dict[bytes, SpaceRecord] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._by_space)

    def find(self, space: KeySpace) -> SpaceRecord | None:
        return self._by_space.get(space)

    def intern(self, space: KeySpace, payload_bytes: int) -> SpaceRecord:
        record = self._by_space.get(space)
        if record is None:
            if len(self._by_space) >= SPACES_KEPT:
                self._forget_empty()
            record = SpaceRecord(space, _NUMBER.pack(self._next), payload_bytes)
            self._next += 1
            self._by_space[space] = record
            self._by_prefix[record.prefix] = record
        return record

    def adopt(self, record: SpaceRecord) -> None:
        """Objects are about to be placed in this space; it may have been forgotten since it was interned."""
        self._by_prefix[record.prefix] = record
        self._by_space.setdefault(record.space, record)

    def of(self, key: bytes) -> SpaceRecord:
        """The space that a key belongs to, which must hold something."""
        return self._by_prefix[key[:PREFIX_BYTES]]

    def everything(self) -> Iterable[SpaceRecord]:
        return self._by_prefix.values()

    def _forget_empty(self) -> None:
        for record in list(self._by_prefix.values()):
            if record.objects == 0:
                del self._by_prefix[record.prefix]
                if self._by_space.get(record.space) is record:
                    del self._by_space[record.space]


def keys_in(prefix: bytes, chunk_hashes: Iterable[bytes]) -> list[bytes]:
    return [prefix + chunk_hash for chunk_hash in chunk_hashes]
