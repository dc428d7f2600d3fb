"""The L2 adapter `p2p`: what peers have in L1, to be looked up and loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from lmcache_core import (
    AdapterContext,
    Capability,
    CompletionQueue,
    FaultLog,
    Job,
    JobId,
    JobTable,
    KeyPage,
    L2Adapter,
    LoadItem,
    ObjectKey,
    Outcome,
    StoreItem,
    Usage,
)
from lmcache_p2p.reader import READERS, Reader


class PeerAdapter(L2Adapter):
    """The service has the reader; until it has started, and after it was closed, there is nothing."""

    capabilities = Capability.READ_ONLY | Capability.VERIFIES

    def __init__(self, settings: None, context: AdapterContext) -> None:
        self._context = context
        self._queue = CompletionQueue()
        self._jobs = JobTable(self._queue)
        self._faults = FaultLog(context.logger, context.clock, f"adapter={context.name}")
        self._closed = False

    def submit_lookup(self, keys: Sequence[ObjectKey]) -> JobId:
        job = self._jobs.open(len(keys), lends_buffers=False)
        reader = None if self._closed else READERS.get(self._context.boot_id)
        if reader is not None and reader.finds_nothing and self._call(lambda reader: reader.missed(len(keys))):
            for place in range(len(keys)):  # at once: without a coordinator, peers cost lookups nothing
                self._jobs.settle(job, place, Outcome.MISSING)
        else:
            self._start(job, lambda reader: reader.lookup(keys), len(keys))
        return job.id

    def submit_load(self, batch: Sequence[LoadItem]) -> JobId:
        job = self._jobs.open(len(batch), lends_buffers=True)

        def report(place: int, outcome: Outcome) -> None:
            self._jobs.report(job, place, outcome)

        self._start(job, lambda reader: reader.load(batch, report), len(batch))
        return job.id

    def submit_store(self, batch: Sequence[StoreItem]) -> JobId:
        return self._refuse(len(batch), lends_buffers=True)

    def submit_delete(self, keys: Sequence[ObjectKey]) -> JobId:
        return self._refuse(len(keys), lends_buffers=False)

    def unpin(self, keys: Sequence[ObjectKey]) -> None:
        self._call(lambda reader: reader.unpin(keys))

    def reject(self, key: ObjectKey, outcome: Outcome) -> None:
        """The reader does not ask those for it that have sent it, for a while."""
        self._call(lambda reader: reader.lessee.reject(key, None))

    def completions(self) -> CompletionQueue:
        return self._queue

    def usage(self) -> Usage | None:
        return None

    def list_keys(self, cursor: str | None, limit: int) -> KeyPage:
        return KeyPage((), None)

    def close(self, deadline_seconds: float) -> None:
        self._closed = True
        self._call(lambda reader: reader.unpin_all())
        self._jobs.abandon()

    def _refuse(self, size: int, *, lends_buffers: bool) -> JobId:
        job = self._jobs.open(size, lends_buffers=lends_buffers)
        for place in range(size):
            self._jobs.settle(job, place, Outcome.FAILED if self._closed else Outcome.REJECTED)
        return job.id

    def _call(self, function: Callable[[Reader], None]) -> bool:
        """On the reader's thread.  False where there is none."""
        reader = READERS.get(self._context.boot_id)
        try:
            if reader is not None:
                reader.loop.call_soon_threadsafe(function, reader)
        except RuntimeError:  # its loop has ended
            return False
        return reader is not None

    def _start(self, job: Job, work: Callable[[Reader], Coroutine[Any, Any, list[Outcome]]], size: int) -> None:
        def begin(reader: Reader) -> None:
            reader.keep(self._finish(job, work(reader), size))

        if self._closed or not self._call(begin):
            for place in range(size):
                self._jobs.settle(job, place, Outcome.FAILED if self._closed else Outcome.MISSING)

    async def _finish(self, job: Job, work: Coroutine[Any, Any, list[Outcome]], size: int) -> None:
        outcomes = [Outcome.FAILED] * size
        try:
            outcomes = await work
        except asyncio.CancelledError:
            raise
        except Exception:  # noqa: BLE001 - a bug: the objects are not there
            self._faults.exception("reading from peers failed")
        finally:
            for place, outcome in enumerate(outcomes):
                self._jobs.settle(job, place, outcome)


def open_adapter(settings: None, context: AdapterContext) -> PeerAdapter:
    return PeerAdapter(settings, context)
