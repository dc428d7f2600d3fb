"""Ports of the admin API without a server behind them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lmcache_admin.parts import AdminParts, open_parts
from lmcache_core.contracts.cache_control import PinOwner
from lmcache_core.contracts.conditions import ActiveCondition, Condition, Severity
from lmcache_core.contracts.server_control import (
    AdapterState,
    Quota,
    QuotaRefusedError,
    ServerControl,
    ShownSetting,
)
from lmcache_core.contracts.server_view import ServerInfo
from lmcache_devkit.event_recorder import EventRecorder


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

    pin_max_bytes = 0

    def __init__(self, cached: int = 3, held: int = 2) -> None:
        self.cached, self.held = cached, held

    def clear(self, force: bool) -> int:
        dropped = self.cached + (self.held if force else 0)
        self.cached, self.held = 0, 0 if force else self.held
        return dropped

    def set_pin_owner(self, owner: PinOwner) -> None:
        pass

    def objects(self) -> int:
        return self.cached + self.held


class StandInSettings:
    def shown(self) -> list[ShownSetting]:
        return [ShownSetting("port", 1, "flag", "--port", 5555)]


class StandInAdapters:
    def clients(self) -> list[Any]:
        return []

    def states(self) -> list[AdapterState]:
        return [
            AdapterState("fs", "fs", 0, "serving", True, 0, 0, 0, 0, None, None, 0, None, settings={"type": "fs"}),
        ]


def status() -> dict[str, Any]:
    return {"l1": {"free": 3}}


def active(severity: Severity, reason: str, subject: str = "") -> tuple[ActiveCondition, ...]:
    """One condition."""
    return (ActiveCondition(Condition("something", severity, reason, subject=subject), 1_700_000_000.0),)


class StandInView:
    """A `ServerView` whose answers are functions of the test's."""

    def __init__(
        self, status: Callable[[], Mapping[str, Any]], conditions: Callable[[], Sequence[ActiveCondition]]
    ) -> None:
        self.status, self.conditions = status, conditions
        self.info = ServerInfo("node-7", "boot", "tcp://127.0.0.1:5555", None, 16, "0.1.0")


def parts(**changes: Any) -> AdminParts:
    """A server that is well and holds five objects, but for the changes."""
    control: dict[str, Any] = {
        "quotas": StandInQuotas(),
        "cache": StandInCache(),
        "resolve": None,
        "freeze": None,
        "adapters": StandInAdapters(),
        "settings": StandInSettings(),
        "events": EventRecorder(),
        "plugins": list,
        "native": False,
        "hide": bytes,
        "hide_also": set,
    }
    seen: dict[str, Any] = {"status": status, "conditions": tuple}
    for name, value in changes.items():
        (control if name in control else seen)[name] = value
    view: Any = StandInView(**seen)
    return open_parts(lambda: view, ServerControl(**control))
