"""One object on its way from L1 to L2."""

from __future__ import annotations

from dataclasses import dataclass

from lmcache_core.contracts.l2_adapter import StoreItem
from lmcache_core.l1.leases import Lease


@dataclass(slots=True, eq=False)
class StoreUnit:
    """Held in L1 by `lease` until every adapter that it goes to is done with it."""

    slot: int
    lease: Lease
    item: StoreItem
    batch: int
    """Number of the batch that it came with; later ones have larger numbers."""
    depth: int
    """Its place in its prompt, in chunks; what lies in front of it is what makes it useful."""
    since: float
    """When it began to be on its way."""
    request_id: str = ""
    leave_l1: bool = False
    remaining: int = 1
    """Adapters that are not done with it, and one more while they are being chosen."""
    kept: int = 0
    """How many of them have answered and still read it."""
    counted: bool = True
    """Is it part of the backlog?"""

    @property
    def size_bytes(self) -> int:
        return self.item.buffer.length
