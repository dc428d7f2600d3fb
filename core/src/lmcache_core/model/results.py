"""Results of operations on objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NamedTuple

from lmcache_core.model.keys import ObjectKey


class Outcome(Enum):
    """The end of one key of one job.  Everything but DONE means: treat it as not there."""

    DONE = "done"
    """Stored, found, loaded or deleted, and nothing is left to do."""
    MISSING = "missing"
    """The backend does not have it.  No fault."""
    REJECTED = "rejected"
    """The backend will not take it (capacity, object too large, a foreign object in its place).  Not to be retried now."""
    DAMAGED = "damaged"
    """Ours by name, but short, torn or altered."""
    FOREIGN = "foreign"
    """Something else lies under that name.  It is left alone."""
    FAILED = "failed"
    """The backend failed.  A retry may help."""
    TIMED_OUT = "timed_out"
    """No answer in time."""


class Usage(NamedTuple):
    """What an adapter holds.  `capacity_bytes` is None where there is no limit."""

    used_bytes: int
    capacity_bytes: int | None
    objects: int


class KeyPage(NamedTuple):
    """One page of a listing; `cursor` is None on the last one."""

    keys: tuple[ObjectKey, ...]
    cursor: str | None
    sizes: tuple[int, ...] | None = None
    """Stored bytes of each, header page included; None where the backend does not say."""


class Bitmap:
    """One bit for each of `size` positions.  Not synchronised; owned by its creator."""

    __slots__ = ("_bits", "size")

    def __init__(self, size: int, positions: Iterable[int] = ()) -> None:
        self.size = size
        self._bits = bytearray(size)
        for position in positions:
            self._bits[position] = 1

    def add(self, position: int) -> None:
        self._bits[position] = 1

    def __contains__(self, position: int) -> bool:
        return 0 <= position < self.size and self._bits[position] == 1

    def __iter__(self) -> Iterator[int]:
        at = self._bits.find(1)
        while at >= 0:
            yield at
            at = self._bits.find(1, at + 1)

    def __len__(self) -> int:
        return self._bits.count(1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bitmap) and self._bits == other._bits

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"Bitmap({self.size}, {list(self)})"
