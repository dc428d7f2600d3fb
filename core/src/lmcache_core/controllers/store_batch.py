"""What the store controller is handed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lmcache_core.contracts.policies import RequestFacts
from lmcache_core.l1.cache import NO_REQUEST
from lmcache_core.l1.leases import Lease


@dataclass(frozen=True, slots=True)
class Batch:
    """Slots that became visible together, in prompt order, held by `lease`."""

    lease: Lease
    slots: tuple[int, ...]
    chunks: Sequence[int]
    """Position of each in its prompt."""
    size_bytes: int
    hit: bool = False
    """True: they have been there, and were hit."""
    request_id: str = ""
    request: RequestFacts = NO_REQUEST
    """What policies may know of it."""
