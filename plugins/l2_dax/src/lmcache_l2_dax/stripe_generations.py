"""Tells a striped device that comes back with what it held earlier: its objects are not those that the others speak of.

Each time that the devices are opened together, their generation is one more.  It is written to each but the first as pending,
then to the first (its superblock), then to the others as settled, and only after that is anything stored.  So whenever the
process dies, a device is behind the others exactly when it was not with them the last time that something was stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from lmcache_object_slots import MetaRegion, Volume
from lmcache_object_slots.sealed_page import PAGE_BYTES, pack_page, unpack_page

MAGIC: Final = b"LMKVGEN1"
PENDING_AT: Final = PAGE_BYTES
SETTLED_AT: Final = 3 * PAGE_BYTES
"""A page each, so that one that is torn leaves the other.  Before and behind them are the device's place and its owner."""


class Generations(NamedTuple):
    """Of one device but the first."""

    reached: int
    """It was opened with the others so often."""
    proven: int
    """And the first one at least so often."""

    @classmethod
    def read(cls, region: MetaRegion, volume: str) -> Generations:
        """0 where it says nothing of this volume.  Raises OSError."""
        pending, settled = (_read(region, at, volume) for at in (PENDING_AT, SETTLED_AT))
        return cls(max(pending, settled), max(pending - 1, settled))


def newest(first: int, others: Sequence[Generations]) -> int:
    """What the devices had come to together, the first one to `first`."""
    return max([first, *(other.proven for other in others)])


def enter_next(generation: int, volume: Volume, others: Sequence[MetaRegion]) -> None:
    """All of them come from this generation to the next.  Raises OSError."""
    # A start that was killed may have left only the page that is about to be written, which may be torn now.
    _write_all(others, SETTLED_AT, volume.id, generation)
    _write_all(others, PENDING_AT, volume.id, generation + 1)
    volume.enter(generation + 1)
    _write_all(others, SETTLED_AT, volume.id, generation + 1)


def _write_all(regions: Sequence[MetaRegion], at: int, volume: str, generation: int) -> None:
    fields: Mapping[str, object] = {"volume": volume, "generation": generation}
    for region in regions:
        region.write(at, pack_page(MAGIC, fields))
        region.sync()


def _read(region: MetaRegion, at: int, volume: str) -> int:
    fields = unpack_page(MAGIC, region.read(at, PAGE_BYTES))
    return int(fields["generation"]) if fields is not None and fields["volume"] == volume else 0
