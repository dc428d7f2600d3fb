"""Memory like L1's for a measurement: the same arena, all of it allocated and touched before any clock runs."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from lmcache_client.errors import ResourceError
from lmcache_client.memory_calls import populate
from lmcache_core.l1.arena import SHM_ROOT, Arena, anonymous_arena, shared_arena, shared_memory_shortage
from lmcache_tools.machine import Machine
from lmcache_tools.quantities import size_text

_STEP_BYTES: Final = 64 << 20
_SPARE_BYTES: Final = 256 << 20
"""What others on this machine keep."""


def require_memory(size_bytes: int, machine: Machine = Machine()) -> None:  # noqa: B008 - it has no state
    """Raises ResourceError when there is not as much free: allocating it anyway would end some process, not this call."""
    available = machine.meminfo("MemAvailable")
    if available is not None and size_bytes + _SPARE_BYTES > available:
        raise ResourceError(
            f"the measurement needs {size_text(size_bytes)} more memory, and this machine has {size_text(available)}; "
            "lower --bytes, --sizes or --depths"
        )


class BenchMemory:
    """Shared memory as engines map it, or anonymous memory where `/dev/shm` is too small."""

    def __init__(self, size_bytes: int) -> None:
        """Raises ResourceError when there is not that much."""
        shared = shared_memory_shortage(size_bytes) is None
        self.arena: Arena = (
            shared_arena(size_bytes, f"bench-{uuid.uuid4().hex}") if shared else anonymous_arena(size_bytes)
        )
        self.is_borrowed = False
        """Set where an adapter may still write to it: it is then left to the end of the process."""

    def touch(self) -> None:
        """Allocate every page and map it.  Takes long.  Raises ResourceError when the machine has less."""
        while (grown := self.arena.grow(self.arena.size_bytes, _STEP_BYTES)) != 0:
            if grown is None:
                raise ResourceError(
                    f"{size_text(self.arena.size_bytes)} of memory like L1's are missing; lower --bytes, --sizes or --depths"
                )
        populate(self.arena.region.address, self.arena.size_bytes)

    def close(self) -> None:
        """Give it back; of memory that an adapter may still write to, only the name."""
        if not self.is_borrowed:
            self.arena.close()
        elif self.arena.segment is not None:
            (SHM_ROOT / self.arena.segment).unlink(missing_ok=True)


@contextmanager
def bench_memory(size_bytes: int) -> Iterator[BenchMemory]:
    """Raises ResourceError when there is not that much."""
    require_memory(size_bytes)
    memory = BenchMemory(size_bytes)
    try:
        memory.touch()
        yield memory
    finally:
        memory.close()
