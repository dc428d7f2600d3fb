"""The objects that an adapter has taken and not let go of yet."""

from __future__ import annotations

import threading

from lmcache_core.jobs.job_table import CompletionQueue, Job, JobTable
from lmcache_core.model.results import Outcome
from lmcache_core.serde.object_work import ObjectWork


class OpenWorks:
    """Answers each job in `queue` when its last object is settled.  Any thread."""

    def __init__(self, queue: CompletionQueue) -> None:
        self._jobs = JobTable(queue)
        self._changed = threading.Condition()  # guards the two below
        self._count = 0
        self._closing = False

    def open(self, size: int, *, lends_buffers: bool) -> Job:
        """As `JobTable.open`."""
        return self._jobs.open(size, lends_buffers=lends_buffers)

    def begin(self, work: ObjectWork) -> bool:
        """False after `begin_close`: the object is settled, and FAILED."""
        with self._changed:
            self._count += 1
            is_late = self._closing
        if is_late:
            self.settle(work, Outcome.FAILED)
        return not is_late

    def settle(self, work: ObjectWork, outcome: Outcome) -> None:
        """Once for each that was begun.  Its lent memory is not touched any more."""
        self._jobs.settle(work.job, work.index, outcome)
        with self._changed:
            self._count -= 1
            if self._closing and not self._count:
                self._changed.notify_all()

    def begin_close(self) -> None:
        """Nothing more is begun."""
        with self._changed:
            self._closing = True

    def wait(self, seconds: float) -> None:
        """After `begin_close`: until all are settled, or so long."""
        with self._changed:
            self._changed.wait_for(lambda: not self._count, seconds)

    def abandon(self) -> int:
        """As `JobTable.abandon`."""
        return self._jobs.abandon()
