"""How a subscriber fares, for `/status`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class LaneState(StrEnum):
    """Of several that hold, the first."""

    ENDED = "ended"
    """It raised when it was asked for its subscriptions or told to begin, and is not used."""
    STUCK = "stuck"
    """It has not come back from a call for too long."""
    FAILING = "failing"
    """It raised a short while ago."""
    RETAINING = "retaining"
    """It keeps more events than may wait for it: memory that the server does not get back."""
    BEHIND = "behind"
    """Events were dropped a short while ago, or wait for long."""
    OK = "ok"


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """Counts are since the start.  An event whose callback raised is delivered, too."""

    state: LaneState
    waiting: int
    delivered: int
    failed: int
    dropped: Mapping[str, int]
    """By event type."""
    cpu_seconds: float
    """Of the subscriber's own thread."""
    slowest_seconds: float
    """The longest that it took for one event, or for the end of a batch."""
    oldest_age_seconds: float
    """Of what waits, 0 where nothing does."""
    retained_events: int
    """An estimate."""
    last_error: str
