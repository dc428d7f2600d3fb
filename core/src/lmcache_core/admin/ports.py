"""What the admin API needs of the server: one port for each resource, so that a route can be tried without a server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lmcache_core.controllers.quota import Quota
from lmcache_core.l1.census import Census


class QuotaPort(Protocol):
    """Limits of cache salts.  Safe from any thread."""

    @property
    def default_bytes(self) -> int | None:
        """The limit of salts without one of their own."""

    def get(self, salt: str) -> Quota: ...

    def everything(self) -> Sequence[Quota]: ...

    def set(self, salt: str, limit_bytes: int) -> None:
        """Raises QuotaRefusedError."""

    def delete(self, salt: str) -> bool:
        """False when the salt had no limit of its own."""


class CachePort(Protocol):
    """What L1 holds.  Safe from any thread."""

    def clear(self, force: bool) -> int:
        """As `contracts.storage.Storage.clear`."""

    def census(self) -> Census: ...


@dataclass(frozen=True, slots=True, eq=False)
class AdminPorts:
    """All of them.  They are called on threads of a pool, so that they may take locks."""

    status: Callable[[], dict[str, Any]]
    health: Callable[[], tuple[bool, str]]
    """(True, "") or False and why."""
    quotas: QuotaPort
    cache: CachePort
