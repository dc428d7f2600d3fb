"""What a device says of itself: two copies, of which the newer whole one counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from lmcache_object_slots.geometry import SlotGeometry
from lmcache_object_slots.medium import MetaRegion
from lmcache_object_slots.sealed_page import PAGE_BYTES, pack_page, unpack_page

MAGIC: Final = b"LMKVSLT1"
EPOCHS_LOST: Final = 2
"""A superblock that was lost has begun at most one epoch, and this is one later."""


@dataclass(frozen=True, slots=True)
class Superblock:
    """`magic` and `version` are the operator's.  Headers of slots from `swept` on mean nothing and are to be cleared, all of
    them with `wipe`, else those of objects.  `epoch` counts the times that a change began, `generation`
    those that a volume on several devices was opened."""

    volume: str
    magic: str
    version: int
    geometry: SlotGeometry
    sequence: int = 0
    epoch: int = 0
    swept: int = 0
    wipe: bool = False
    generation: int = 0


class SuperblockPages:
    """The two copies, on the first two blocks of the metadata.  Blocking; one thread at a time; raises OSError."""

    def __init__(self, region: MetaRegion, block_bytes: int) -> None:
        self._region = region
        self._block_bytes = block_bytes

    def read(self) -> Superblock | None:
        """The newer whole one.  Where its forerunner is not there, that one's place may have held its successor, which is
        lost: then its `epoch` is one of which no checkpoint speaks."""
        found = sorted((block for copy in range(2) if (block := self._read(copy))), key=lambda block: block.sequence)
        if not found:
            return None
        newest = found[-1]
        if found[0].sequence != newest.sequence - 1:
            return replace(newest, epoch=newest.epoch + EPOCHS_LOST)
        return newest

    def write(self, block: Superblock) -> None:
        """In the place of the older one; on the medium when this returns."""
        fields = {**asdict(block), "geometry": asdict(block.geometry)}
        self._region.write(block.sequence % 2 * self._block_bytes, pack_page(MAGIC, fields))
        self._region.sync()

    def sync(self) -> None:
        """What was written to the device before is on the medium."""
        self._region.sync()

    def is_ours(self) -> bool:
        """Does either of them begin like ours, whole or not?"""
        return any(self._region.read(copy * self._block_bytes, len(MAGIC)) == MAGIC for copy in range(2))

    def _read(self, copy: int) -> Superblock | None:
        fields = unpack_page(MAGIC, self._region.read(copy * self._block_bytes, PAGE_BYTES))
        return None if fields is None else _superblock(fields)


def _superblock(fields: Mapping[str, Any]) -> Superblock | None:
    try:
        return Superblock(**{**fields, "geometry": SlotGeometry(**fields["geometry"])})
    except (KeyError, TypeError):  # of a version that says other things
        return None
