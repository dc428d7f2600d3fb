"""What the admin API needs of the server: one port for each resource, so that a route can be tried without a server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from lmcache_client.errors import LMCacheError
from lmcache_core.admin.cache_ports import CachePorts
from lmcache_core.admin.reconfigure_port import AdaptersPort, SettingsPort
from lmcache_core.admin.schemas_server import (
    ConfiguredAdapter,
    LoggerLevel,
    PluginAnswer,
    Setting,
    ThreadRow,
    Version,
)
from lmcache_core.contracts.conditions import ActiveCondition
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


class ConfigPort(Protocol):
    """What the server was told, without secrets.  Safe from any thread."""

    def settings(self) -> Sequence[Setting]: ...

    def adapters(self) -> Sequence[ConfiguredAdapter]: ...


class UnknownLoggerError(LMCacheError):
    """Nothing logs under this name."""


class LogLevelPort(Protocol):
    """How much is logged.  Safe from any thread."""

    def own(self) -> Sequence[LoggerLevel]:
        """Loggers with a level of their own, the root among them."""

    def set(self, logger: str, level: str | None) -> LoggerLevel:
        """Raises UnknownLoggerError."""


@dataclass(frozen=True, slots=True, eq=False)
class AdminPorts:
    """All of them.  They are called on threads of a pool, so that they may take locks."""

    status: Callable[[], dict[str, Any]]
    conditions: Callable[[], Sequence[ActiveCondition]]
    """What is not as it should be."""
    quotas: QuotaPort
    cache: CachePort
    version: Callable[[], Version]
    config: ConfigPort
    plugins: Callable[[], Sequence[PluginAnswer]]
    threads: Callable[[], Sequence[ThreadRow]]
    log_levels: LogLevelPort
    hide: Callable[[bytes], bytes] = field(default=bytes, kw_only=True)
    """Takes secrets out of an answer."""
    objects: CachePorts | None = field(default=None, kw_only=True)
    """None: there are no routes about single objects."""
    adapters: AdaptersPort | None = field(default=None, kw_only=True)
    settings: SettingsPort | None = field(default=None, kw_only=True)
    """None: there are no routes that change what runs."""
