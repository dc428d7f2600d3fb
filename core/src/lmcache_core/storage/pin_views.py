"""Pins as others see them."""

from __future__ import annotations

from typing import NamedTuple


class PinSubject(NamedTuple):
    """Whose chunks a pin holds."""

    model_name: str
    cache_salt: str


class PinView(NamedTuple):
    """A pin, as it was at one moment."""

    name: str
    subject: PinSubject
    objects: int
    size_bytes: int
    """Of the slots, what other pins hold, too, included."""
    expires_in_seconds: float | None
    """None: it stays until it is let go."""


class PinTotals(NamedTuple):
    """All pins together; what several of them hold counts once."""

    pins: int
    objects: int
    size_bytes: int
    max_bytes: int


class Pinned(NamedTuple):
    """What one request to pin has come to."""

    chunks: int
    """Of which every shard is pinned now."""
    objects: int
    """Shards of chunks that are pinned now, whether they were before or not."""
