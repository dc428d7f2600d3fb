"""Ports of the admin API without a server behind them."""

from __future__ import annotations

from typing import Any

from lmcache_core.admin.ports import AdminPorts
from lmcache_core.contracts.conditions import ActiveCondition, Condition, Severity
from lmcache_core.contracts.server_control import (
    AdapterState,
    LoggerLevel,
    Quota,
    QuotaRefusedError,
    ServerControl,
    ShownSetting,
    UnknownLoggerError,
)
from lmcache_http.admin_api.server import Version


class StandInQuotas:
    """Limits and uses that the test sets; `refusal` makes every change fail."""

    def __init__(self) -> None:
        self.default_bytes: int | None = None
        self.limits: dict[str, int] = {}
        self.used: dict[str, int] = {}
        self.refusal = ""

    def get(self, salt: str) -> Quota:
        limit = self.limits.get(salt, self.default_bytes)
        return Quota(salt, limit, self.used.get(salt, 0), salt in self.limits)

    def everything(self) -> list[Quota]:
        return [self.get(salt) for salt in sorted(self.limits.keys() | self.used.keys())]

    def set(self, salt: str, limit_bytes: int) -> None:
        if self.refusal:
            raise QuotaRefusedError(self.refusal)
        self.limits[salt] = limit_bytes

    def delete(self, salt: str) -> bool:
        return self.limits.pop(salt, None) is not None


class StandInCache:
    """Holds `cached` objects that may go and `held` ones that go by force alone."""

    def __init__(self, cached: int = 3, held: int = 2) -> None:
        self.cached, self.held = cached, held

    def clear(self, force: bool) -> int:
        dropped = self.cached + (self.held if force else 0)
        self.cached, self.held = 0, 0 if force else self.held
        return dropped

    def objects(self) -> int:
        return self.cached + self.held


class StandInSettings:
    def shown(self) -> list[ShownSetting]:
        return [ShownSetting("port", 1, "flag", "--port", 5555)]


class StandInAdapters:
    def states(self) -> list[AdapterState]:
        return [
            AdapterState("fs", "fs", 0, "serving", True, 0, 0, 0, 0, None, None, 0, None, settings={"type": "fs"}),
        ]


class StandInLevels:
    """One logger, called `known`."""

    def __init__(self) -> None:
        self.level: str | None = None

    def own(self) -> list[LoggerLevel]:
        return [self._row()]

    def set(self, logger: str, level: str | None) -> LoggerLevel:
        if logger != "known":
            raise UnknownLoggerError(f"no logger is called {logger!r}")
        self.level = level
        return self._row()

    def _row(self) -> LoggerLevel:
        return LoggerLevel("known", self.level, self.level or "WARNING")


def version() -> Version:
    return Version(version="0.1.0", contract=1, python="3.11", native=False, instance_id="node-7")


def status() -> dict[str, Any]:
    return {"l1": {"free": 3}}


def active(severity: Severity, reason: str, subject: str = "") -> tuple[ActiveCondition, ...]:
    """One condition."""
    return (ActiveCondition(Condition("something", severity, reason, subject=subject), 1_700_000_000.0),)


def ports(**changes: Any) -> AdminPorts:
    """A server that is well and holds five objects, but for the changes."""
    control: dict[str, Any] = {
        "quotas": StandInQuotas(),
        "cache": StandInCache(),
        "adapters": StandInAdapters(),
        "settings": StandInSettings(),
        "log_levels": StandInLevels(),
        "plugins": list,
        "threads": list,
        "hide": bytes,
    }
    given: dict[str, Any] = {"status": status, "conditions": tuple, "version": version, "objects": None}
    for name, value in changes.items():
        (control if name in control else given)[name] = value
    return AdminPorts(control=ServerControl(**control), **given)
