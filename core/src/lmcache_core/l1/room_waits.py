"""Stores that wait until slots of their size are free."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Event


@dataclass(slots=True, eq=False)
class RoomWait:
    """`event` is set once `wanted` slots of `slot_bytes` could be taken, or nobody is to wait any more."""

    slot_bytes: int
    wanted: int
    event: Event = field(default_factory=Event)
    over: bool = False
    """Nobody is to wait any more."""


class RoomWaits:
    """Not synchronised: the caller holds the cache's lock.  Costs nothing while nobody waits."""

    def __init__(self) -> None:
        self.by_size: dict[int, list[RoomWait]] = {}
        """Empty while nobody waits: look at it before calling `tell`."""
        self._over = False

    def begin(self, slot_bytes: int, wanted: int, available: int) -> RoomWait:
        wait = RoomWait(slot_bytes, wanted)
        wait.over = self._over
        if self._over or available >= wanted:
            wait.event.set()
        self.by_size.setdefault(slot_bytes, []).append(wait)
        return wait

    def end(self, wait: RoomWait) -> None:
        waits = self.by_size[wait.slot_bytes]
        waits.remove(wait)
        if not waits:
            del self.by_size[wait.slot_bytes]

    def tell(self, slot_bytes: int, available: int) -> None:
        """So many slots of this size can be taken now."""
        for wait in self.by_size.get(slot_bytes, ()):
            if available >= wait.wanted and not wait.event.is_set():
                wait.event.set()

    def finish(self) -> None:
        """Wake everybody; from now on nobody waits."""
        self._over = True
        for waits in self.by_size.values():
            for wait in waits:
                wait.over = True
                wait.event.set()
