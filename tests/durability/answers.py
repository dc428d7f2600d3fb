"""One adapter, used by several threads at once, each waiting for its own jobs."""

from __future__ import annotations

import os
import select
import threading
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future

from lmcache_core import BorrowedBuffer, JobDone, JobId, L2Adapter, LoadItem, ObjectKey, Outcome, StoreItem

WAIT_SECONDS = 60.0

Item = tuple[ObjectKey, BorrowedBuffer]
Outcomes = tuple[Outcome, ...]


class Answers:
    """Any thread may ask.  Raises TimeoutError for what is not answered within a minute."""

    def __init__(self, adapter: L2Adapter) -> None:
        self._adapter = adapter
        self._lock = threading.Lock()  # guards the next
        self._waiting: defaultdict[JobId, Future[Outcomes]] = defaultdict(Future)
        self._stop, self._stopping = os.pipe()
        self._thread = threading.Thread(target=self._collect, name="answers", daemon=True)
        self._thread.start()

    def store(self, items: Sequence[Item]) -> Outcomes:
        return self._wait(self._adapter.submit_store([StoreItem(*item) for item in items]))

    def load(self, items: Sequence[Item]) -> Outcomes:
        return self._wait(self._adapter.submit_load([LoadItem(*item) for item in items]))

    def delete(self, keys: Sequence[ObjectKey]) -> Outcomes:
        return self._wait(self._adapter.submit_delete(keys))

    def lookup(self, keys: Sequence[ObjectKey]) -> Outcomes:
        """What is found stays pinned until `unpin`."""
        return self._wait(self._adapter.submit_lookup(keys))

    def unpin(self, keys: Sequence[ObjectKey]) -> None:
        self._adapter.unpin(keys)

    def close(self) -> None:
        """Stop collecting; the adapter's owner closes that."""
        os.close(self._stopping)
        self._thread.join()
        os.close(self._stop)

    def _wait(self, job: JobId) -> Outcomes:
        outcomes = self._future(job).result(WAIT_SECONDS)
        with self._lock:
            del self._waiting[job]
        return outcomes

    def _future(self, job: JobId) -> Future[Outcomes]:
        with self._lock:
            return self._waiting[job]  # the first of the answer and its waiter creates it

    def _collect(self) -> None:
        source = self._adapter.completions()
        poll = select.poll()
        poll.register(source.fileno(), select.POLLIN)
        poll.register(self._stop, select.POLLIN | select.POLLHUP)
        while all(fd != self._stop for fd, _ in poll.poll()):
            for completion in source.drain():
                if isinstance(completion, JobDone):
                    self._future(completion.job).set_result(tuple(completion.outcomes))
