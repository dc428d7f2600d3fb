"""What is known of a slot, and of an object's place."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class SlotState(IntEnum):
    """What is known of a slot."""

    FREE = 0
    """Nothing in it: the header page on the medium is zero."""
    SOILED = 1
    """Nothing in it, but its header page may say otherwise, and is cleared before the slot is used."""
    UNKNOWN = 2
    """Its header was not read since the start, and no object is known to be in it."""
    BUSY = 3
    """It is being written or cleared."""
    HELD = 4
    """An object is in it."""
    DOUBTED = 5
    """An object should be in it; its header was not read since."""
    WITHHELD = 6
    """Something foreign is in it, or it cannot be read.  Left alone."""


class Place(NamedTuple):
    """Where an object is; `length` in bytes, header page included.  `sure`: its header was read or written since the start."""

    slot: int
    length: int
    sure: bool


class Reservation(NamedTuple):
    """A slot for one writer; one that is not `blank` is to be cleared first."""

    slot: int
    blank: bool
