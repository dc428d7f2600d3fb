"""The KV cache of one worker in host memory: copies end before `submit_*` returns."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
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


class CpuMemory:
    """Owns its segments.  They stay mapped while a copy runs, whatever the worker does."""

    def __init__(self, segments: Sequence[CpuSegment], groups: Sequence[PagedGroup], copier: PageCopier) -> None:
        self._segments = tuple(segments)
        self._groups = tuple(groups)
        self._copier = copier
        self._bases = tuple(
            tuple(segments[storage].address + offset for storage, offset in group.bases) for group in groups
        )
        self.swift_bytes: Final = SWIFT_BYTES if copier.native else 0
        self._lock = threading.Lock()
        self._copies = 0
        self._closed = False

    def submit_gather(self, job: TransferJob, done: Done) -> bytes:
        return self._run(job, self._copier.gather, done)

    def submit_scatter(self, job: TransferJob, done: Done) -> bytes:
        return self._run(job, self._copier.scatter, done)

    def close(self) -> None:
        with self._lock:
            last = not self._closed and not self._copies
            self._closed = True
        if last:
            self._unmap()

    def _run(self, job: TransferJob, copy: _Copy, done: Done) -> bytes:
        copied = False
        self._enter()
        try:
            for segment in self._segments:
                segment.check()
            try:
                for part in job.parts:
                    copy(self._groups[part.group], self._bases[part.group], part.blocks, part.objects)
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
            self._copies += 1

    def _leave(self) -> None:
        with self._lock:
            self._copies -= 1
            last = self._closed and not self._copies
        if last:
            self._unmap()

    def _unmap(self) -> None:
        for segment in self._segments:
            segment.close()
