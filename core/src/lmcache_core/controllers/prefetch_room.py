"""How much of L1 prefetches occupy: what adapters are writing, and what was loaded and still waits for its readers."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from lmcache_core.controllers.prefetch_request import Prefetch
from lmcache_core.l1.leases import LeaseState


class PrefetchRoom:
    """Belongs to the prefetch controller's thread, but `used_bytes` may be read by any."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._lent: dict[Hashable, int] = {}
        self._held: dict[tuple[Prefetch, ...], int] = {}
        """Bytes by who waited for them."""

    @property
    def used_bytes(self) -> int:
        held = sum(size for who, size in list(self._held.items()) if any(map(_is_held, who)))
        return held + sum(list(self._lent.values()))

    @property
    def left_bytes(self) -> int:
        return self.limit_bytes - self.used_bytes

    @property
    def waits_for_readers(self) -> bool:
        """Is some of it held for requests that have their answer?"""
        return any(prefetch.answered and _is_held(prefetch) for who in self._held for prefetch in who)

    def lend(self, job: Hashable, size_bytes: int) -> None:
        """Slots of so many bytes are with an adapter, for this job."""
        self._lent[job] = size_bytes

    def give_back(self, job: Hashable) -> None:
        """The adapter touches them no more.  Saying so again does nothing."""
        self._lent.pop(job, None)

    def hold(self, prefetches: Sequence[Prefetch], size_bytes: int) -> None:
        """So much was loaded for these together.  It counts, once, until the leases of all their lookups hold nothing:
        their requests have ended, or workers have taken everything over."""
        who = tuple(dict.fromkeys(prefetches))
        self._held[who] = self._held.get(who, 0) + size_bytes

    def holds(self, prefetch: Prefetch) -> bool:
        """Does what was loaded for it take room?"""
        return any(prefetch in who for who in self._held)

    def sweep(self) -> None:
        """Forget what is held no more."""
        for who in list(self._held):
            if not any(map(_is_held, who)):
                del self._held[who]


def _is_held(prefetch: Prefetch) -> bool:
    return prefetch.lease.state is not LeaseState.ENDED and bool(prefetch.lease.slots)
