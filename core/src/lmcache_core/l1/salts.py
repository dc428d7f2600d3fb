"""Salt accounting: what each cache salt uses of L1, what it may use, and stores that wait below its limit.

A limit bounds the bytes of a salt's slots in any state.  A reservation beyond it gets nothing, neither free space nor other
salts' objects.  The salt's own oldest objects are evicted instead, when the eviction controller asks which salts have too
much.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from lmcache_core.l1.allocator import AllocationWait, WaitQueue
from lmcache_core.l1.index import SlotIndex, SpaceRecord

_HEADROOM: Final = 16
"""A salt that reached its limit is brought below it by this part of the limit, so that not every store has to wait."""


class SaltLimits(msgspec.Struct, frozen=True):
    """Bytes that salts may use.  `default` is for those without a limit of their own; None: unlimited."""

    by_salt: Mapping[str, int] = msgspec.field(default_factory=dict)
    default: int | None = None

    def of(self, salt: str) -> int | None:
        """The limit of a salt in bytes, or None."""
        return self.by_salt.get(salt, self.default)


class SaltExcess(msgspec.Struct, frozen=True):
    """A salt whose objects have to be evicted."""

    salt: str
    limit_bytes: int
    used_bytes: int
    refused_bytes: int
    """Bytes of reservations beyond the limit since the last `take_excess`."""

    @property
    def due_bytes(self) -> int:
        """Bytes to evict."""
        wanted = min(self.refused_bytes, self.limit_bytes)
        return min(self.used_bytes, self.used_bytes + wanted - self.limit_bytes + self.limit_bytes // _HEADROOM)


class SaltAccounts:
    """Safe from any thread.  Methods whose names end in `_locked` are called with the cache's lock."""

    def __init__(self, index: SlotIndex) -> None:
        self._index = index
        self._limits = SaltLimits()
        self.waits: WaitQueue[str] = WaitQueue()
        """Stores of salts at their limit, until objects of the salt have been removed."""
        self._refused: dict[str, int] = {}
        """Salts that may be beyond their limit, and the bytes that each was refused."""

    @property
    def any_over(self) -> bool:
        """Was a salt beyond its limit when that was last checked, or refused a reservation since, or does its store wait?"""
        return bool(self._refused or self.waits.by_key)

    def limit(self, limits: SaltLimits, changed: Iterable[str]) -> None:
        """Apply new limits; the bytes of `changed` salts beyond their new limits go with the next round of eviction."""
        with self._index.lock:
            self._limits = limits
            for salt in changed:
                self._refused.setdefault(salt, 0)
        self._index.request_eviction()

    def used_by(self, salt: str) -> int:
        """Bytes of the salt's slots."""
        with self._index.lock:
            return self._used(salt)

    def used_by_salt(self) -> dict[str, int]:
        """Bytes of every salt that has any.  Takes no lock: stores in the meantime are counted in part."""
        used: dict[str, int] = {}
        for record in list(self._index.spaces.everything()):
            if count := self._bytes_of(record):
                salt = record.space.cache_salt
                used[salt] = used.get(salt, 0) + count
        return used

    def take_excess(self) -> list[SaltExcess]:
        """For the eviction controller: salts beyond their limit, or refused a reservation within it.  A salt that is still
        beyond its limit is returned again next time."""
        with self._index.lock:
            checked, self._refused = self._refused, {}
            for salt, waits in self.waits.by_key.items():
                checked[salt] = max(sum(wait.wanted * wait.slot_bytes for wait in waits), checked.get(salt, 0))
            excess = []
            for salt, refused in checked.items():
                limit, used = self._limits.of(salt), self._used(salt)
                if limit is None or not used or used + refused <= limit:
                    continue
                excess.append(SaltExcess(salt, limit, used, refused))
                if used > limit:
                    self._refused[salt] = 0
            return excess

    def notify_waits(self) -> None:
        """Objects were removed, or limits have changed: wake stores that waited at their salt's limit and fit now."""
        if not self.waits.by_key:
            return
        with self._index.lock:
            for salt, waits in self.waits.by_key.items():
                for wait in waits:
                    if self.allowed_locked(salt, wait.slot_bytes, 1):
                        wait.event.set()

    def allowed_locked(self, salt: str, slot_bytes: int, slots: int) -> int:
        """How many of `slots` more the salt may have."""
        limit = self._limits.of(salt)
        return slots if limit is None else max(0, min(slots, (limit - self._used(salt)) // slot_bytes))

    def refuse_locked(self, salt: str, slot_bytes: int, slots: int) -> None:
        """Count slots of a reservation that are beyond the limit."""
        limit = self._limits.of(salt)
        if limit is not None and slot_bytes <= limit:  # one that can never fit does not evict others
            self._refused[salt] = self._refused.get(salt, 0) + slots * slot_bytes

    def wait_locked(self, salt: str, slot_bytes: int, slots: int, reserved: int) -> AllocationWait | None:
        """A wait for `slots` more, beside `reserved` ones of the same store.  None where that is more than the whole limit:
        no eviction could make it fit."""
        limit = self._limits.of(salt)
        if limit is not None and (reserved + slots) * slot_bytes > limit:
            return None
        wait = AllocationWait(slot_bytes, slots, salt)
        self.waits.add(salt, wait)
        return wait

    def _used(self, salt: str) -> int:
        return sum(map(self._bytes_of, self._index.spaces.of_salt(salt)))

    def _bytes_of(self, record: SpaceRecord) -> int:
        return record.objects * self._index.slot_bytes_for(record.payload_bytes)
