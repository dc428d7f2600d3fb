"""Which objects left L1 and why: counted always, and told where somebody listens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from lmcache_core.contracts.events import ObjectsLeft, Publisher
from lmcache_core.model.keys import KeySpace

EVICTED: Final = "evicted"
QUOTA: Final = "quota"
CLEARED: Final = "cleared"
PASSING: Final = "passing"
"""Why objects leave, as `contracts.events.ObjectsLeft` says it."""
SALTS_MAX: Final = 1024
"""Salts whose evictions are counted by themselves; what comes later is counted together."""
OTHER: Final = "_other"


class Evicted(NamedTuple):
    """Since the start."""

    objects: int
    slot_bytes: int


class Departures:
    """Not synchronised: the caller holds the cache's lock, but for `tell`."""

    def __init__(self) -> None:
        self._events: Publisher | None = None
        self.untold: list[tuple[str, KeySpace, list[bytes]]] = []
        """What is to be told: reason, space, and chunk hashes.  Whether there is any may be asked without the lock."""
        self._evicted: dict[tuple[str, str], Evicted] = {}
        self._salts: set[str] = set()

    def tell_to(self, events: Publisher) -> None:
        self._events = events

    @property
    def wanted(self) -> bool:
        """Does anybody want to hear of single objects?"""
        return self._events is not None and self._events.wants(ObjectsLeft)

    def note(self, reason: str, objects: Sequence[tuple[KeySpace, bytes]]) -> None:
        """These are found no more.  Only where they are `wanted`."""
        hashes: dict[KeySpace, list[bytes]] = {}
        for space, chunk_hash in objects:
            hashes.setdefault(space, []).append(chunk_hash)
        self.untold += [(reason, space, of_space) for space, of_space in hashes.items()]

    def take(self) -> Callable[[], None]:
        """What is to be told: to be called without the lock."""
        untold, self.untold = self.untold, []
        return lambda: self._tell(untold)

    def count_evicted(self, salt: str, reason: str, objects: int, slot_bytes: int) -> None:
        if salt not in self._salts:
            if len(self._salts) >= SALTS_MAX:
                salt = OTHER
            else:
                self._salts.add(salt)
        before = self._evicted.get((salt, reason))
        if before is not None:
            objects, slot_bytes = objects + before.objects, slot_bytes + before.slot_bytes
        self._evicted[salt, reason] = Evicted(objects, slot_bytes)

    def evicted(self) -> dict[tuple[str, str], Evicted]:
        """By cache salt and reason: `evicted` or `quota`."""
        return dict(self._evicted)

    def _tell(self, untold: Sequence[tuple[str, KeySpace, list[bytes]]]) -> None:
        if self._events is None:
            return
        for reason, space, hashes in untold:
            self._events.publish(
                ObjectsLeft(space.model_name, space.cache_salt, space.kv_rank, reason, b"".join(hashes))
            )
