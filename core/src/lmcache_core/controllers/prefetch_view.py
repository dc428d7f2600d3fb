"""How lookups fare that go on in L2."""

from __future__ import annotations

from typing import NamedTuple


class PrefetchView(NamedTuple):
    """How it goes on in L2; counts are since the start."""

    active: int
    queued: int
    completed: int
    """Everything that could be had is there."""
    timed_out: int
    """Answered at their deadline, with what was there."""
    cancelled: int
    """Their requests ended."""
    given_up: int
    """There was no adapter to ask, or the controller failed."""
    l1_bytes: int
    l1_max_bytes: int
    loaded: int
    room_waits: int
