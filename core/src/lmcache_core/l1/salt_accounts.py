"""What each cache salt uses of L1, and what it may use.

A limit is a bound on the bytes of a salt's slots, whatever state they are in, so that a reservation beyond it gets
nothing: not from free room, and not by letting somebody else's objects go.  The salt's own oldest go instead, when the
eviction controller asks who has too much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from lmcache_core.l1.index import SpaceRecord, Spaces
from lmcache_core.l1.salt_waits import SaltWait, SaltWaits

_HEADROOM: Final = 16
"""A salt that reached its limit is brought below it by this part of the limit, so that not every store has to wait."""


@dataclass(frozen=True, slots=True)
class SaltLimits:
    """Bytes that salts may use.  `default` is for those that have no limit of their own; None: as much as there is."""

    by_salt: Mapping[str, int] = field(default_factory=dict)
    default: int | None = None

    def of(self, salt: str) -> int | None:
        """The limit of a salt in bytes, or None."""
        return self.by_salt.get(salt, self.default)


@dataclass(frozen=True, slots=True)
class SaltExcess:
    """A salt that has to let some of its objects go."""

    salt: str
    limit_bytes: int
    used_bytes: int
    refused_bytes: int
    """What it wanted to store or load since it was last asked for, and had no room for within its limit."""

    @property
    def due_bytes(self) -> int:
        """What has to leave."""
        wanted = min(self.refused_bytes, self.limit_bytes)
        return min(self.used_bytes, self.used_bytes + wanted - self.limit_bytes + self.limit_bytes // _HEADROOM)


class SaltAccounts:
    """Not synchronised: the caller holds the cache's lock, except for `used_by_salt`."""

    def __init__(self, spaces: Spaces, slot_bytes_for: Callable[[int], int]) -> None:
        self._spaces = spaces
        self._slot_bytes_for = slot_bytes_for
        self._limits = SaltLimits()
        self.waits = SaltWaits()
        self._refused: dict[str, int] = {}
        """Salts that may have too much, and the bytes that each was refused."""

    @property
    def any_over(self) -> bool:
        """Had some salt too much when it was last looked at, was it refused something since, or does it wait?"""
        return bool(self._refused or self.waits)

    def limit(self, limits: SaltLimits, changed: Iterable[str]) -> None:
        """These apply from now on.  The next `take_excess` finds who of `changed` has more than its new limit."""
        self._limits = limits
        for salt in changed:
            self._refused.setdefault(salt, 0)

    def used(self, salt: str) -> int:
        """Bytes of the salt's slots."""
        return sum(map(self._bytes_of, self._spaces.of_salt(salt)))

    def used_by_salt(self) -> dict[str, int]:
        """Bytes of every salt that has any.  Needs no lock: while others store it is a little of before and after."""
        used: dict[str, int] = {}
        for record in list(self._spaces.everything()):
            if count := self._bytes_of(record):
                salt = record.space.cache_salt
                used[salt] = used.get(salt, 0) + count
        return used

    def room(self, salt: str, slot_bytes: int, slots: int) -> int:
        """How many of `slots` more the salt may have."""
        limit = self._limits.of(salt)
        return slots if limit is None else max(0, min(slots, (limit - self.used(salt)) // slot_bytes))

    def refuse(self, salt: str, slot_bytes: int, slots: int) -> None:
        """So many slots of a reservation were beyond the limit."""
        limit = self._limits.of(salt)
        if limit is not None and slot_bytes <= limit:  # one that can never fit is no reason to let others go
            self._refused[salt] = self._refused.get(salt, 0) + slots * slot_bytes

    def wait(self, salt: str, slot_bytes: int, slots: int, held: int) -> SaltWait | None:
        """A wait for so many slots more, beside `held` ones that the same store has already.  None where that is more
        than the salt may have at all: nothing that leaves could make it fit."""
        limit = self._limits.of(salt)
        if limit is not None and (held + slots) * slot_bytes > limit:
            return None
        return self.waits.begin(salt, slot_bytes, slots)

    def tell(self) -> None:
        """Objects have left: wake those who wait for that."""
        self.waits.tell(lambda salt, slot_bytes: self.room(salt, slot_bytes, 1))

    def take_excess(self) -> list[SaltExcess]:
        """Who has to let objects go.  A salt that still has too much is named again next time."""
        checked, self._refused = self._refused, {}
        for salt, wanted in self.waits.wanted_bytes().items():
            checked[salt] = max(wanted, checked.get(salt, 0))
        excess = []
        for salt, refused in checked.items():
            limit, used = self._limits.of(salt), self.used(salt)
            if limit is None or not used or used + refused <= limit:
                continue
            excess.append(SaltExcess(salt, limit, used, refused))
            if used > limit:
                self._refused[salt] = 0
        return excess

    def _bytes_of(self, record: SpaceRecord) -> int:
        return record.objects * self._slot_bytes_for(record.payload_bytes)
