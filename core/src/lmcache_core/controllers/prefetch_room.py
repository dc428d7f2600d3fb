"""How much of L1 prefetches occupy: what adapters are writing, and what was loaded and still waits for its readers."""

from __future__ import annotations

from lmcache_core.controllers.prefetch_request import Prefetch
from lmcache_core.l1.leases import LeaseState


class PrefetchRoom:
    """Belongs to the prefetch controller's thread, but `used_bytes` may be read by any."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._lent = 0
        self._held: dict[Prefetch, int] = {}

    @property
    def used_bytes(self) -> int:
        return self._lent + sum(size for prefetch, size in list(self._held.items()) if _is_held(prefetch))

    @property
    def left_bytes(self) -> int:
        return self.limit_bytes - self.used_bytes

    @property
    def waits_for_readers(self) -> bool:
        """Is some of it held for requests that have their answer?"""
        return any(prefetch.answered for prefetch in self._held)

    def lend(self, size_bytes: int) -> None:
        """Slots of so many bytes are with an adapter."""
        self._lent += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """The adapter touches them no more."""
        self._lent -= size_bytes

    def hold(self, prefetch: Prefetch, size_bytes: int) -> None:
        """So much was loaded for this prefetch.  It counts until the lookup's lease holds nothing: its request has ended,
        or workers have taken everything over."""
        self._held[prefetch] = self._held.get(prefetch, 0) + size_bytes

    def holds(self, prefetch: Prefetch) -> bool:
        """Does what was loaded for it take room?"""
        return prefetch in self._held

    def sweep(self) -> None:
        """Forget what is held no more."""
        for prefetch in list(self._held):
            if not _is_held(prefetch):
                del self._held[prefetch]


def _is_held(prefetch: Prefetch) -> bool:
    return prefetch.lease.state is not LeaseState.ENDED and bool(prefetch.lease.slots)
