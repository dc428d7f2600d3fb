"""The paged KV cache of one worker in GPU memory."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from lmcache_kv_layout import PagedGroup
from lmcache_transfer_torch.cuda.gpu import Gpu
from lmcache_transfer_torch.cuda.imported_memory import Import
from lmcache_transfer_torch.cuda.lane import Lane, MappedGroup
from lmcache_transfer_torch.cuda.page_shape import page_shape
from lmcache_transfer_torch.cuda.tables import Table
from lmcache_transfer_torch.cuda.worker_storage import Place
from lmcache_transfer_torch.device import AbortedTransferError, DeviceError, Done, TransferJob

logger = logging.getLogger(__name__)


class CudaMemory:
    """Implements `device.WorkerMemory`."""

    swift_bytes: Final = 0
    """A driver's call may wait for the device."""

    def __init__(self, gpu: Gpu, places: Sequence[Place], groups: Sequence[PagedGroup], chunk_tokens: int) -> None:
        """Raises DeviceError, with nothing imported."""
        self._gpu = gpu
        self._lock = threading.Lock()
        self._under_way = 1  # until it is built
        self._closed = False
        self._lines: set[int] = set()
        gpu.joined(self)
        try:
            self._build(places, groups, chunk_tokens)
        except BaseException:
            gpu.left(self)
            raise
        self._leave()

    def _build(self, places: Sequence[Place], groups: Sequence[PagedGroup], chunk_tokens: int) -> None:
        gpu = self._gpu
        with ExitStack() as undo:
            addresses = [self._import(undo, place) for place in places]
            self._peer = gpu.parts.ordering.peer()
            undo.callback(self._peer.close)
            shapes = [
                page_shape(group, group.blocks_per_chunk(chunk_tokens), _bases(group, addresses)) for group in groups
            ]
            for shape in shapes:
                for gather in (True, False):
                    gpu.parts.kernels.prepare(shape, gather)
            plane_bytes = max(shape.plane_bytes for shape in shapes)
            self._gather, self._scatter = (self._lane(undo, plane_bytes) for _ in range(2))
            self._groups = self._mapped(undo, groups, addresses)
            self._owned = undo.pop_all()
        with self._lock:
            self._lines = {self._gather.number, self._scatter.number}

    def submit_gather(self, job: TransferJob, done: Done) -> bytes:
        return self._submit(self._gather, job, True, done)

    def submit_scatter(self, job: TransferJob, done: Done) -> bytes:
        return self._submit(self._scatter, job, False, done)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            last = not self._under_way
            self._tell_left()
        if last:
            self._gpu.later(self._release)

    def _tell_left(self) -> None:
        """With the lock: the lanes are this worker's as long as something is under way."""
        if self._closed and self._under_way:
            self._gpu.parts.completions.worker_left(self._lines)

    def _submit(self, lane: Lane, job: TransferJob, gather: bool, done: Done) -> bytes:
        with self._lock:
            if self._closed:
                raise DeviceError("the worker has left")
            self._under_way += 1

        def ended(arrived: bool) -> None:
            try:
                done(arrived)
            finally:
                self._leave()

        try:
            return lane.submit(job, self._groups, gather, self._peer, ended)
        except AbortedTransferError:
            raise  # it is under way until `ended` is called
        except BaseException:
            self._leave()
            raise
        finally:
            with self._lock:
                self._tell_left()  # the worker may have left before this transfer could be found

    def _leave(self) -> None:
        with self._lock:
            self._under_way -= 1
            last = self._closed and not self._under_way
        if last:
            self._gpu.later(self._release)

    def _release(self) -> None:
        try:
            self._owned.close()
        except DeviceError as error:
            logger.warning("memory of a worker could not be released reason=%s", error)
        finally:
            self._gpu.left(self)

    # --- building

    def _import(self, undo: ExitStack, place: Place) -> int:
        imported: Import = self._gpu.memory.open(place.handle)
        undo.callback(self._gpu.memory.close, imported)
        return imported.place(place.offset, place.nbytes)

    def _lane(self, undo: ExitStack, plane_bytes: int) -> Lane:
        lane = self._gpu.take_lane(plane_bytes)
        undo.callback(self._gpu.give_lane, lane)
        return lane

    def _mapped(
        self, undo: ExitStack, groups: Sequence[PagedGroup], addresses: Sequence[int]
    ) -> tuple[MappedGroup, ...]:
        tables = self._gpu.parts.tables
        mapped = []
        for group in groups:
            bases = _bases(group, addresses)
            table: Table = tables.take(bases)
            undo.callback(tables.give, table)
            self._gather.fill(table, len(bases))
            mapped.append(MappedGroup(group, bases, table.device))
        return tuple(mapped)


def _bases(group: PagedGroup, addresses: Sequence[int]) -> tuple[int, ...]:
    return tuple(addresses[storage] + offset for storage, offset in group.bases)
