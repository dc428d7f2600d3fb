"""What the storage manager counts, for `/status`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Since the server started, in chunks; `lookups` in lookups.  Each field has one lock: that of who counts it."""

    lookups: int = 0
    requested: int = 0
    hit: int = 0
    loaded_from_l2: int = 0
    stored: int = 0
    retrieved: int = 0
