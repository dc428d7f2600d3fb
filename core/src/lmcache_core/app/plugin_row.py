"""What is known of one plugin, for lists."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lmcache_core.app.discovery import Candidate
from lmcache_core.app.plugin_hooks import Offered


class Status(StrEnum):
    ACTIVE = "active"
    """Something it offers is in use, or would be without being named."""
    AVAILABLE = "available"
    """Loaded; in use once the configuration names what it offers."""
    BLOCKED = "blocked"
    """Passed over because of --plugin or --no-plugin.  Not imported."""
    INCOMPATIBLE = "incompatible"
    """Made for another contract or another lmcache-core.  Not imported."""
    BROKEN = "broken"
    """Cannot be imported, or breaks the contract."""
    DUPLICATE = "duplicate"
    """Two distributions have a plugin of this name.  Neither was imported."""


@dataclass(frozen=True, slots=True)
class PluginRow:
    """One line of `lmcache plugins list`.  `error` says what is wrong, `remedy` what to do about it."""

    candidate: Candidate
    status: Status
    offers: tuple[Offered, ...] = ()
    error: str | None = None
    remedy: str | None = None

    @property
    def unusable(self) -> bool:
        return self.status in (Status.INCOMPATIBLE, Status.BROKEN, Status.DUPLICATE)

    def __str__(self) -> str:
        remedy = f"; {self.remedy}" if self.remedy else ""
        return f"plugin '{self.candidate.name}' ({self.candidate.owner}) is {self.status}: {self.error}{remedy}"
