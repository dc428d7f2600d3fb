"""What whoever submitted a job to an adapter finds in the inbox."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lmcache_core.model.results import Outcome


@dataclass(frozen=True, slots=True)
class JobAnswer:
    """The outcomes of a job.  `token` is what it was submitted with."""

    token: Any
    outcomes: tuple[Outcome, ...]
    released: bool


@dataclass(frozen=True, slots=True)
class JobReleased:
    """A job that kept its buffers beyond its answer has let go of them."""

    token: Any


Answer = JobAnswer | JobReleased
