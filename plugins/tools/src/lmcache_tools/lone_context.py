"""The context of an adapter that is measured or tried without a server."""

from __future__ import annotations

import logging
import mmap
import uuid

from lmcache_core.contracts.clock import SystemClock
from lmcache_core.contracts.events import Event
from lmcache_core.contracts.l1_memory import MemoryRegion
from lmcache_core.contracts.l2_adapter import AdapterContext


class _NoEvents:
    """Drops every event."""

    def publish(self, event: Event) -> None:
        pass

    def wants(self, kind: type[Event]) -> bool:
        return False


def lone_context(name: str, instance_id: str, region: MemoryRegion) -> AdapterContext:
    """All of its buffers are in `region`.  The context is of one start, as that of a server is."""
    return AdapterContext(
        name=name,
        instance_id=instance_id,
        boot_id=uuid.uuid4().hex,
        regions=(region,),
        align_bytes=mmap.PAGESIZE,
        clock=SystemClock(),
        events=_NoEvents(),
        logger=logging.getLogger(f"lmcache.l2.{name}"),
    )
