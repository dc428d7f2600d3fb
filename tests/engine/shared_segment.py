"""The server's L1 segment, seen and altered from outside, as a broken peer could."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HEADER_BYTES = 4096
"""An object on disk is a header page and then the payload, which is what engines see in L1."""
PIECE_BYTES = 32 << 20


class Slot(NamedTuple):
    """Where the payload of one object lies."""

    offset: int
    length: int


class SharedSegment:
    """Reads and writes by file operations: mapping it would fill its holes with pages."""

    def __init__(self, name: str) -> None:
        self._descriptor = os.open(Path("/dev/shm") / name.lstrip("/"), os.O_RDWR)

    def find(self, stored_object: Path) -> Slot:
        """The slot that holds the payload of an object that also lies on disk."""
        payload = stored_object.read_bytes()[HEADER_BYTES:]
        for at, piece in self._pieces():
            found = piece.find(payload)
            if found >= 0:
                return Slot(at + found, len(payload))
        raise LookupError(f"the payload of {stored_object.name} is nowhere in L1")

    def read(self, slot: Slot) -> bytes:
        return os.pread(self._descriptor, slot.length, slot.offset)

    def write(self, slot: Slot, payload: bytes) -> None:
        assert len(payload) == slot.length
        assert os.pwrite(self._descriptor, payload, slot.offset) == slot.length

    def close(self) -> None:
        os.close(self._descriptor)

    def _pieces(self) -> Iterator[tuple[int, bytes]]:
        """Overlapping stretches of what is there, so that a payload of half a stretch is whole in one of them."""
        at = 0
        size = os.fstat(self._descriptor).st_size
        while at < size:
            yield at, os.pread(self._descriptor, PIECE_BYTES, at)
            at += PIECE_BYTES // 2
