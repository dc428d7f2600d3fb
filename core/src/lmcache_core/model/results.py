"""What came of an operation on one object."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from lmcache_core.model.keys import ObjectKey


class Outcome(Enum):
    """The end of one key of one job.  Everything but DONE means: treat it as not there."""

    DONE = "done"
    """Stored, found, loaded or deleted, and nothing is left to do."""
    MISSING = "missing"
    """The backend does not have it.  No fault."""
    REJECTED = "rejected"
    """The backend will not take it (capacity, object too large, a foreign object in its place).  Not to be retried now."""
    DAMAGED = "damaged"
    """Ours by name, but short, torn or altered."""
    FOREIGN = "foreign"
    """Something else lies under that name.  It is left alone."""
    FAILED = "failed"
    """The backend failed.  A retry may help."""
    TIMED_OUT = "timed_out"
    """No answer in time."""


class Usage(NamedTuple):
    """What an adapter holds.  `capacity_bytes` is None where there is no limit."""

    used_bytes: int
    capacity_bytes: int | None
    objects: int


class KeyPage(NamedTuple):
    """One page of a listing; `cursor` is None on the last one."""

    keys: tuple[ObjectKey, ...]
    cursor: str | None
