"""Quotas: limits of the L1 bytes that each cache salt may use, changed while the server runs."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from heapq import nsmallest
from typing import Any, Final

from lmcache_core.contracts.events import Publisher, QuotaChanged
from lmcache_core.contracts.server_control import Quota, QuotaRefusedError
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.salts import SaltLimits
from lmcache_core.model.names import salt_text

QUOTAS_MAX: Final = 65_536
"""Salts that may have a limit of their own."""
SHOWN_MAX: Final = 100
"""Salts that status names."""


class Quotas:
    """Implements `contracts.server_control.QuotaControl`.

    Limits are kept in memory: those of the configuration are there again after a restart.

    `isolates` says whether eviction policy `policy` takes room from one salt when asked to; without that no limit can be
    kept, and setting one raises QuotaRefusedError."""

    def __init__(self, cache: L1Cache, policy: str, isolates: bool, events: Publisher) -> None:
        self._cache = cache
        self._policy = policy
        self.isolates = isolates
        """Does the eviction policy take space from the salts that are over their limits?"""
        self._events = events
        self._lock = threading.Lock()
        self._limits = SaltLimits()

    def begin(self, limits: Mapping[str, int], default: int | None) -> None:
        """The limits of the configuration, in bytes; before anything is stored."""
        if limits or default is not None:
            self._apply(SaltLimits(dict(limits), default), ())  # L1 is empty

    def get(self, salt: str) -> Quota:
        return self._quota(salt, self._limits, self._cache.salts.used_by(salt))

    def everything(self) -> list[Quota]:
        """Every salt that has a limit of its own or anything in L1; those that use most first."""
        return self._first(None)[1]

    @property
    def default_bytes(self) -> int | None:
        return self._limits.default

    def set(self, salt: str, limit_bytes: int) -> None:
        """What the salt has beyond it leaves with the next round of eviction, its oldest first, as far as no request reads
        it."""
        with self._lock:
            if salt not in self._limits.by_salt and len(self._limits.by_salt) >= QUOTAS_MAX:
                raise QuotaRefusedError(
                    f"{QUOTAS_MAX} salts have a quota, which is the most; delete one, or use a default"
                )
            self._apply(SaltLimits({**self._limits.by_salt, salt: limit_bytes}, self._limits.default), (salt,))
        self._events.publish(QuotaChanged(salt, limit_bytes))

    def delete(self, salt: str) -> bool:
        with self._lock:
            by_salt = dict(self._limits.by_salt)
            if by_salt.pop(salt, None) is None:
                return False
            self._apply(SaltLimits(by_salt, self._limits.default), (salt,))
        self._events.publish(QuotaChanged(salt, self._limits.default))
        return True

    def follow(self, policy: str, isolates: bool, default_bytes: int | None) -> None:
        """Another eviction policy takes room from now on, and salts without a limit of their own have this one.  Raises
        QuotaRefusedError, with nothing changed, where limits need a policy that isolates, and this one does not."""
        with self._lock:
            if not isolates and default_bytes is not None:
                raise QuotaRefusedError(
                    "a default quota needs an eviction policy that takes room from one cache salt alone, and "
                    f"'{policy}' does not; remove the default quota, or choose a policy such as IsolatedLRU"
                )
            if not isolates and (count := len(self._limits.by_salt)):
                raise QuotaRefusedError(
                    f"{count} cache salts have a quota, and eviction policy '{policy}' cannot take room from one salt "
                    "alone; delete the quotas first, or choose a policy such as IsolatedLRU"
                )
            self._policy, self.isolates = policy, isolates
            if default_bytes != self._limits.default:
                limits = SaltLimits(self._limits.by_salt, default_bytes)
                self._apply(limits, self._cache.salts.used_by_salt().keys() - limits.by_salt.keys())

    def status(self) -> dict[str, Any]:
        """For `/status`: the salts that use most, and how many more there are."""
        salts, quotas = self._first(SHOWN_MAX)
        return {
            "default_limit_bytes": self.default_bytes,
            "salts": salts,
            "largest": [
                {"cache_salt": salt_text(quota.salt), "limit_bytes": quota.limit_bytes, "used_bytes": quota.used_bytes}
                for quota in quotas
            ],
        }

    def _first(self, count: int | None) -> tuple[int, list[Quota]]:
        """The number of salts, and the `count` (None: all) that use most."""
        limits, used = self._limits, self._cache.salts.used_by_salt()
        salts = used.keys() | limits.by_salt.keys()
        first = nsmallest(len(salts) if count is None else count, salts, key=lambda salt: (-used.get(salt, 0), salt))
        return len(salts), [self._quota(salt, limits, used.get(salt, 0)) for salt in first]

    def _apply(self, limits: SaltLimits, changed: Iterable[str]) -> None:
        if not self.isolates and (limits.by_salt or limits.default is not None):
            raise QuotaRefusedError(
                "a quota needs an eviction policy that takes room from one cache salt alone, and "
                f"'{self._policy}' does not; start the server with --eviction-policy IsolatedLRU"
            )
        self._limits = limits
        self._cache.salts.limit(limits, changed)

    @staticmethod
    def _quota(salt: str, limits: SaltLimits, used_bytes: int) -> Quota:
        return Quota(salt, limits.of(salt), used_bytes, salt in limits.by_salt)
