"""What an adapter is handed when it is opened."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.events import Publisher
from lmcache_core.contracts.l1_memory import MemoryRegion


@dataclass(frozen=True, slots=True)
class AdapterContext:
    """The server, as far as an L2 adapter may see it.  `name` is unique among the adapters of this server."""

    name: str
    instance_id: str
    """The server's stable identity (`--instance-id`)."""
    boot_id: str
    """New with every start of the server; names temporaries."""
    regions: tuple[MemoryRegion, ...]
    """L1's memory.  Every borrowed buffer lies in one of them."""
    align_bytes: int
    """Every borrowed buffer starts at a multiple of it."""
    clock: Clock
    events: Publisher
    logger: logging.Logger
