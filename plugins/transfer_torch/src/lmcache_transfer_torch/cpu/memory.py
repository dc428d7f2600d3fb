"""The KV cache of one worker in host memory: copies end before `submit_*` returns."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from lmcache_kv_layout import PageCopier, PagedGroup
from lmcache_transfer_torch.cpu.segment import CpuSegment
from lmcache_transfer_torch.device import DeviceError, Done, TransferJob

logger = logging.getLogger(__name__)

EVENT = b"stub_ipc_handle"
"""What stock workers on a CPU call every event: one that has happened."""

SWIFT_BYTES: Final = 1 << 20
"""What lmcache-native copies in 0.1 ms: about what it takes to hand a request over to another thread, and its answer back."""

_Copy = Callable[[PagedGroup, Sequence[int], Sequence[int], Sequence[int]], int]
_Write = Callable[[], int]


class CpuMemory:
    """Owns its segments.  They stay mapped while a copy runs, whatever the worker does."""

    def __init__(self, segments: Sequence[CpuSegment], groups: Sequence[PagedGroup], copier: PageCopier) -> None:
        self._segments = tuple(segments)
        self._groups = tuple(groups)
        self._copier = copier
        self.bases: Final = tuple(
            tuple(segments[storage].address + offset for storage, offset in group.bases) for group in groups
        )
        """Of each kernel group, in this process; mapped while a job runs."""
        self.swift_bytes: Final = SWIFT_BYTES if copier.native else 0
        self._lock = threading.Lock()
        self._running = 0
        self._closed = False

    def submit_gather(self, job: TransferJob, done: Done) -> bytes:
        return self._run(self._copies(job, self._copier.gather), done)

    def submit_scatter(self, job: TransferJob, done: Done) -> bytes:
        return self._run(self._copies(job, self._copier.scatter), done)

    def submit_writes(self, writes: Sequence[_Write], done: Done) -> bytes:
        """Call each of them, in order, as `submit_scatter` copies."""
        return self._run(writes, done)

    def close(self) -> None:
        with self._lock:
            last = not self._closed and not self._running
            self._closed = True
        if last:
            self._unmap()

    def _copies(self, job: TransferJob, copy: _Copy) -> Sequence[_Write]:
        groups, bases = self._groups, self.bases
        return [partial(copy, groups[part.group], bases[part.group], part.blocks, part.objects) for part in job.parts]

    def _run(self, writes: Sequence[_Write], done: Done) -> bytes:
        copied = False
        self._enter()
        try:
            for segment in self._segments:
                segment.check()
            try:
                for write in writes:
                    write()
                copied = True
            except (OSError, ValueError) as error:
                logger.error("a worker's KV cache could not be copied reason=%s", error)
            except Exception:  # whatever a copier raises, its copy has ended with it: no caller may wait for this job
                logger.exception("a copy in host memory failed")
        finally:
            self._leave()
        done(copied)
        return EVENT

    def _enter(self) -> None:
        with self._lock:
            if self._closed:
                raise DeviceError("the worker has left")
            self._running += 1

    def _leave(self) -> None:
        with self._lock:
            self._running -= 1
            last = self._closed and not self._running
        if last:
            self._unmap()

    def _unmap(self) -> None:
        for segment in self._segments:
            segment.close()
