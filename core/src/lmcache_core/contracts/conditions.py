"""Conditions: what an operator has to know, from the moment when it begins until it ends.

A part of the server, or of a plugin, reports the conditions that hold now, each time that it is asked.  What it reports no
more has ended.  The server adds since when, and shows them: `/healthcheck`, `/status`, `lmcache status`, the dashboard,
the metric `lmcache_condition`, one log line at the beginning and one at the end, and alerts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

NAME_PATTERN: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
NO_COUNTS: Final[Mapping[str, int]] = MappingProxyType({})


class Severity(StrEnum):
    INFO = "info"
    """Worth knowing.  The server is healthy."""
    WARNING = "warning"
    """Something does not work, and the server serves without it.  The server is degraded: `/healthcheck` answers 200 and
    says so."""
    CRITICAL = "critical"
    """Engines are not served as they should be.  The server is unhealthy: `/healthcheck` answers 503."""


class ServerState(StrEnum):
    """The severest condition decides."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNHEALTHY = "unhealthy"


class Condition(NamedTuple):
    """One thing that is not as it should be.  Two conditions are the same where `name` and `subject` are."""

    name: str
    """What kind it is: lower-case letters, digits and underscores, 64 at most, such as `medium_full`.  Never of numbers or
    names that vary: those belong into `reason` and `subject`."""
    severity: Severity
    reason: str
    """One sentence with the facts, for people.  May change while the condition lasts."""
    remedy: str = ""
    """What to do, in one sentence."""
    subject: str = ""
    """What it is about, such as `adapter fs`.  The server fills it in for what a plugin reports."""
    counts: Mapping[str, int] = NO_COUNTS
    """Figures of now, or of the last minute."""

    @property
    def sentence(self) -> str:
        """Subject and reason, in one line."""
        return f"{self.subject}: {self.reason}" if self.subject else self.reason


class ReportsConditions:
    """What plugins open and the server asks."""

    def conditions(self) -> Sequence[Condition]:
        """What an operator should know about it as long as it lasts, such as a medium that is full or a collector that cannot
        be reached; empty while all is well.  Asked about once per second, by a thread that does nothing else and may overlap
        any other call.  Should not block."""
        return ()


class ActiveCondition(NamedTuple):
    """A condition that holds now."""

    condition: Condition
    since: float
    """Seconds since the epoch."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        fields = self.condition._asdict()
        return {
            **fields,
            "severity": self.condition.severity.value,
            "counts": dict(fields["counts"]),
            "since": self.since,
        }


def server_state(active: Sequence[ActiveCondition]) -> ServerState:
    severities = {each.condition.severity for each in active}
    if Severity.CRITICAL in severities:
        return ServerState.UNHEALTHY
    return ServerState.DEGRADED if Severity.WARNING in severities else ServerState.HEALTHY


def state_reason(active: Sequence[ActiveCondition]) -> str:
    """Why the server is not healthy, in one line; empty where it is."""
    return "; ".join(each.condition.sentence for each in active if each.condition.severity is not Severity.INFO)
