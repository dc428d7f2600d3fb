"""What the store controller is handed."""

from __future__ import annotations

from dataclasses import dataclass

from lmcache_core.l1.leases import Lease


@dataclass(frozen=True, slots=True)
class Batch:
    """Slots that became visible together, in prompt order, held by `lease`."""

    lease: Lease
    slots: tuple[int, ...]
    size_bytes: int
    hit: bool = False
    """True: they have been there, and were hit."""
    first_chunk: int = 0
    """Position of the first one in its prompt."""
    request_id: str = ""
