"""What a probe found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    """The server runs, but worse than it could, or not for long."""
    FAIL = "fail"
    """The server does not start, or loses its purpose."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """`text` is what was found, `remedy` what to do about it, `fix` the same as a command or flags, where there is one.
    `facts` are the numbers behind it, for JSON."""

    probe: str
    level: Level
    text: str
    remedy: str = ""
    fix: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        return {
            "probe": self.probe,
            "level": self.level.value,
            "text": self.text,
            "remedy": self.remedy or None,
            "fix": self.fix or None,
            "facts": dict(self.facts),
        }
