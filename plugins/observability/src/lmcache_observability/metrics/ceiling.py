"""What a hit-rate ceiling is, without the arithmetic behind it."""

from __future__ import annotations

from typing import Final, NamedTuple

ALL: Final = "_all"
"""In place of a salt: all of them."""


class Ceiling(NamedTuple):
    """Of one salt in one window: what was hit of the requested chunks, and what a cache without limits would have hit."""

    cache_salt: str
    window: str
    requested_chunks: float
    actual: float
    ceiling: float
