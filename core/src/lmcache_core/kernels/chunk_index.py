"""Chunk hash to slot, within one key space, in dictionaries that never take long to grow.

A dictionary of a million keys takes 40 ms to grow, and nothing else runs meanwhile.  So a space that becomes large is
split over 256 of them, by the last byte of the hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Final

_SPLIT_AT: Final = 16_384
_PARTS: Final = 256


class ChunkIndex:
    """Not synchronised."""

    __slots__ = ("_count", "_parts")

    def __init__(self) -> None:
        self._parts: list[dict[bytes, int]] = [{}]
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def find(self, chunk_hashes: Sequence[bytes]) -> list[int]:
        """The slot of each, or -1."""
        parts = self._parts
        if len(parts) == 1:
            return list(map(parts[0].get, chunk_hashes, repeat(-1)))
        return [parts[chunk_hash[-1]].get(chunk_hash, -1) for chunk_hash in chunk_hashes]

    def add(self, chunk_hash: bytes, slot: int) -> None:
        """One that is not there yet."""
        parts = self._parts
        parts[chunk_hash[-1] if len(parts) > 1 else 0][chunk_hash] = slot
        self._count += 1
        if self._count > _SPLIT_AT and len(parts) == 1:
            self._split()

    def discard(self, chunk_hash: bytes) -> None:
        """One that is there."""
        parts = self._parts
        del parts[chunk_hash[-1] if len(parts) > 1 else 0][chunk_hash]
        self._count -= 1

    def _split(self) -> None:
        parts: list[dict[bytes, int]] = [{} for _ in range(_PARTS)]
        for chunk_hash, slot in self._parts[0].items():
            parts[chunk_hash[-1]][chunk_hash] = slot
        self._parts = parts
