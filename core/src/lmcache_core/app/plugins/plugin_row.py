"""What is known of one plugin, for lists."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from lmcache_core.app.plugins.discovery import Candidate
from lmcache_core.app.plugins.plugin_hooks import Offered
from lmcache_core.contracts.offer import SettingGroup

SLOW_SETUP_MS: Final = 100.0
"""A plugin module imports in a few milliseconds, and its hooks do nothing but name things; every start pays for it."""


class Status(StrEnum):
    ACTIVE = "active"
    """Something it offers is in use, or would be without being named."""
    AVAILABLE = "available"
    """Loaded; in use once the configuration names what it offers."""
    BLOCKED = "blocked"
    """Passed over because of --plugin, --no-plugin or --safe-mode.  Not imported."""
    INCOMPATIBLE = "incompatible"
    """Made for another contract or another lmcache-core.  Not imported."""
    BROKEN = "broken"
    """Cannot be imported, or breaks the contract."""
    DUPLICATE = "duplicate"
    """Two distributions have a plugin of this name.  Neither was imported."""


@dataclass(frozen=True, slots=True)
class PluginRow:
    """One line of `lmcache plugins list`.  `error` says in one line what is wrong, `remedy` what to do about it."""

    candidate: Candidate
    status: Status
    offers: tuple[Offered, ...] = ()
    groups: tuple[SettingGroup, ...] = ()
    error: str | None = None
    remedy: str | None = None
    setup_ms: float | None = None
    """Time by the clock for its import and its hooks; None where it was not imported."""
    conflicts: tuple[str, ...] = ()
    """A sentence for each of its offers whose name is somebody else's, too."""
    traceback: str | None = None
    """All of the error, where an exception of the plugin is the reason."""

    @property
    def slowness(self) -> str | None:
        """A sentence where setting it up took too long."""
        if self.setup_ms is None or self.setup_ms <= SLOW_SETUP_MS:
            return None
        return (
            f"took {self.setup_ms:.0f} ms to set up, more than {SLOW_SETUP_MS:.0f} ms, at every start; "
            "its module should import its libraries where it opens what it offers"
        )

    @property
    def unusable(self) -> bool:
        return self.status in (Status.INCOMPATIBLE, Status.BROKEN, Status.DUPLICATE)

    def __str__(self) -> str:
        remedy = f"; {self.remedy}" if self.remedy else ""
        return f"plugin '{self.candidate.name}' ({self.candidate.owner}) is {self.status}: {self.error}{remedy}"
