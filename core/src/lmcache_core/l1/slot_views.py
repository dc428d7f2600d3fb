"""What can be seen of single slots from outside, and what became of dropping some."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from lmcache_core.model.keys import ObjectKey


class SlotUse(Enum):
    CACHED = "cached"
    """Ready, and held by nobody."""
    HELD = "held"
    """Ready, and held by a request, a worker or a controller."""
    WRITING = "writing"
    LEAVING = "leaving"
    """Found no more; it is freed with its last hold."""


class SlotView(NamedTuple):
    """A slot in use, as it was at one moment."""

    slot: int
    key: ObjectKey
    use: SlotUse
    payload_bytes: int
    slot_bytes: int


class Dropped(NamedTuple):
    """What became of objects that were to go."""

    dropped: int
    """Found no more."""
    held: int
    """Stay, because somebody holds them."""
    leaving: Sequence[int]
    """Slots of those that are found no more and leave with their last hold."""
