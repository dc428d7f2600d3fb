"""Slots by state: the sum that must always come out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Census:
    """Slots by state.  `used_bytes` is everything that is not free."""

    total: int
    free: int
    cached: int
    held: int
    quarantined: int
    leases: int
    used_bytes: int
    capacity_bytes: int

    @property
    def holds(self) -> bool:
        return self.free + self.cached + self.held + self.quarantined == self.total
