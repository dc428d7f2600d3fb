"""The residency feed: which objects a tier has, as numbered changes and as snapshots.

A snapshot is made while its tier changes.  Its parts, and then the changes from `begins_at` on, are what the tier has: for each
key the last change decides, and applying one again does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from lmcache_core.model.keys import KeySpace


class ChangeKind(StrEnum):
    STORE = "store"
    """The object can be found from now on."""
    DELETE = "delete"
    """It cannot be found any more."""
    ACCESS = "access"
    """A lookup found it.  Of L2 backends only."""


class Change(NamedTuple):
    """One kind of change of some keys of one space."""

    kind: ChangeKind
    space: KeySpace
    object_bytes: int
    """Of each of the objects, header page included; 0 for an access."""
    hashes: bytes
    """Chunk hashes of 32 bytes, one behind the other."""


class Changes(NamedTuple):
    """Each key has a number; the first of `changes` has `first`, and the others follow without a gap."""

    first: int
    changes: Sequence[Change]


class Overrun(NamedTuple):
    """The changes that were asked for are not kept any more."""

    first: int
    """The oldest number that is."""


class SnapshotPart(NamedTuple):
    begins_at: int
    """The feed's next number at the start of the snapshot; the same in all parts."""
    objects: Sequence[Change]
    """Of the kind STORE."""


class ResidencyFeed(Protocol):
    """Of L1, or of one L2 adapter.  Safe from any thread.  Nothing is kept before `open` and after the last `close`."""

    @property
    def name(self) -> str:
        """`l1`, or the adapter's."""

    @property
    def backend(self) -> str:
        """The adapter's type; empty for L1."""

    @property
    def is_shared(self) -> bool:
        """Other servers use the same backend."""

    @property
    def epoch(self) -> int:
        """Larger than that of a feed before it with the same name.  Numbers of several feeds have nothing in common."""

    def open(self) -> None:
        """A reader begins: changes are kept from now on, a bounded number of them.  Numbers go on where they were."""

    def close(self) -> None:
        """A reader ends."""

    @property
    def end(self) -> int:
        """The number that the next change gets."""

    def read(self, first: int, keys: int) -> Changes | Overrun:
        """Changes from this number on, of up to this number of keys; empty where there are none yet."""

    def snapshot(self, keys: int) -> Iterator[SnapshotPart]:
        """Everything that the tier has, in parts of at most this number of keys, at least one part.  Takes locks for one part
        at a time.  Of an L2 backend it may block for as long as the backend does, and raises LMCacheError where that fails."""
