"""Where slots lie on a medium.

| metadata (`meta_bytes`) | slot 0 | slot 1 | ... | slot n - 1 | rest, not used |

slot: | reserve | header page (4,096) | payload | rest, not used |
                ^ `run_offset`: a slot holds an object's run as it is in L1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lmcache_core import HEADER_BYTES, ConfigError

SLOT_BYTES_MAX: Final = 2**32 - HEADER_BYTES
"""Lengths of objects are kept in 32 bits."""
SLOTS_MAX: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class SlotGeometry:
    """Sizes and offsets in bytes; equal geometries put every object in the same place."""

    slot_bytes: int
    count: int
    header_bytes: int = HEADER_BYTES
    align_bytes: int = HEADER_BYTES
    meta_bytes: int = 0

    def __post_init__(self) -> None:
        if self.slot_bytes > SLOT_BYTES_MAX or self.count > SLOTS_MAX:
            raise ConfigError(
                f"{self.count} slots of {self.slot_bytes} bytes: at most {SLOTS_MAX} slots of {SLOT_BYTES_MAX} bytes "
                "can be numbered; choose another slot_bytes"
            )
        if self.max_object_bytes <= HEADER_BYTES:
            raise ConfigError(
                f"slot_bytes {self.slot_bytes} leaves no room for a payload behind header_bytes {self.header_bytes}; "
                f"it must be more than {self.header_bytes}"
            )

    @classmethod
    def fitting(
        cls, total_bytes: int, slot_bytes: int, header_bytes: int, align_bytes: int, meta_bytes: int
    ) -> SlotGeometry:
        """As many slots as there is room for.  Raises ConfigError where that is none."""
        count = max(total_bytes - meta_bytes, 0) // slot_bytes
        if not count:
            raise ConfigError(
                f"{total_bytes} bytes hold no slot of {slot_bytes} bytes behind {meta_bytes} bytes of metadata; "
                "make it larger, or choose a smaller slot_bytes or meta_total_bytes"
            )
        return cls(slot_bytes, min(count, SLOTS_MAX), header_bytes, align_bytes, meta_bytes)

    @property
    def head_bytes(self) -> int:
        """What is written last of a run, and cleared when it goes: the header page, in whole blocks."""
        return max(HEADER_BYTES, self.align_bytes)

    @property
    def run_offset(self) -> int:
        """Of an object's run within its slot."""
        return (self.header_bytes - HEADER_BYTES) // self.align_bytes * self.align_bytes

    @property
    def max_object_bytes(self) -> int:
        """Longest run, header page included."""
        return self.slot_bytes - self.run_offset

    @property
    def end(self) -> int:
        """Where the last slot ends."""
        return self.meta_bytes + self.count * self.slot_bytes

    def run_at(self, slot: int) -> int:
        """Where on the medium the run of this slot begins."""
        return self.meta_bytes + slot * self.slot_bytes + self.run_offset
