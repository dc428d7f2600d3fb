"""Stores of salts that have reached their limit, and wait until some of the salt's own objects have left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lmcache_core.l1.room_waits import RoomWait


@dataclass(slots=True, eq=False, kw_only=True)
class SaltWait(RoomWait):
    """`event` is set once the salt may have one slot more, or nobody is to wait any more."""

    salt: str


class SaltWaits:
    """Not synchronised: the caller holds the cache's lock."""

    def __init__(self) -> None:
        self._by_salt: dict[str, list[SaltWait]] = {}
        self._over = False

    def __bool__(self) -> bool:
        return bool(self._by_salt)

    def __len__(self) -> int:
        """Stores that wait."""
        return sum(map(len, self._by_salt.values()))

    def begin(self, salt: str, slot_bytes: int, wanted: int) -> SaltWait:
        wait = SaltWait(slot_bytes, wanted, salt=salt)
        if self._over:
            self._end_now(wait)
        self._by_salt.setdefault(salt, []).append(wait)
        return wait

    def end(self, wait: SaltWait) -> None:
        waits = self._by_salt[wait.salt]
        waits.remove(wait)
        if not waits:
            del self._by_salt[wait.salt]

    def wanted_bytes(self) -> dict[str, int]:
        """What those who wait want, by salt."""
        return {salt: sum(wait.wanted * wait.slot_bytes for wait in waits) for salt, waits in self._by_salt.items()}

    def tell(self, room: Callable[[str, int], int]) -> None:
        """Wake those for whom `room(salt, slot_bytes)` finds a slot."""
        for salt, waits in self._by_salt.items():
            for wait in waits:
                if room(salt, wait.slot_bytes):
                    wait.event.set()

    def finish(self) -> None:
        """Wake everybody; from now on nobody waits."""
        self._over = True
        for waits in self._by_salt.values():
            for wait in waits:
                self._end_now(wait)

    @staticmethod
    def _end_now(wait: SaltWait) -> None:
        wait.over = True
        wait.event.set()
