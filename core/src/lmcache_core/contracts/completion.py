"""How an adapter says that a job is done.

A job's outcome and the release of its buffers are two things (docs/internals/object-format.md, "Buffers"): a job that timed out
has an outcome, but its thread or device may still write into the borrowed memory.  Only the release ends the borrowing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NewType, Protocol

from lmcache_core.model.results import Outcome

JobId = NewType("JobId", int)


@dataclass(frozen=True, slots=True)
class JobDone:
    """The outcome of each key of a job, in the order of its submission.  Comes exactly once per job."""

    job: JobId
    outcomes: tuple[Outcome, ...]
    released: bool = True
    """False: the buffers are still borrowed, and a `BuffersReleased` for this job will follow."""


@dataclass(frozen=True, slots=True)
class BuffersReleased:
    """No byte of the job's buffers will be touched any more.  Comes exactly once, after a `JobDone` that kept them."""

    job: JobId


Completion = JobDone | BuffersReleased


class CompletionSource(Protocol):
    """Where a controller waits for an adapter."""

    def fileno(self) -> int:
        """A descriptor that polls readable while completions are waiting."""

    def drain(self) -> Sequence[Completion]:
        """Everything that is waiting, each exactly once.  Never blocks; one caller at a time."""
