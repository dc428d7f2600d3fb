"""Transfers of one worker in one direction: two streams that take turns, each with a staging buffer.

While the kernel of one works, the copy engine serves the other; in each stream the order of submission keeps a buffer from
being filled before it is empty.  A lane outlives its worker, because freeing memory of a GPU waits for all work on it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from lmcache_kv_layout import PagedGroup
from lmcache_transfer_torch.cuda.arena_side import ArenaSide
from lmcache_transfer_torch.cuda.completions import Completions, Pending
from lmcache_transfer_torch.cuda.driver import DriverError, GpuDriver
from lmcache_transfer_torch.cuda.file_side import FileSide
from lmcache_transfer_torch.cuda.host_side import BounceSide, HostSide, PinnedSide, Staging, Waiter
from lmcache_transfer_torch.cuda.ordering import Ordering, Peer
from lmcache_transfer_torch.cuda.page_kernels import PageKernels
from lmcache_transfer_torch.cuda.page_shape import PageShape, page_shape
from lmcache_transfer_torch.cuda.pieces import Piece, pieces_of
from lmcache_transfer_torch.cuda.tables import ITEM_BYTES, Table, Tables
from lmcache_transfer_torch.device import AbortedTransferError, DeviceError, TransferJob, TransferPart

logger = logging.getLogger(__name__)

_Thing = TypeVar("_Thing")

STAGING_BYTES: Final = 4 << 20
"""A copy of so much takes some 80 microseconds, and starting one some 10."""


class MappedGroup(NamedTuple):
    """A kernel group of a worker, as this process reaches it."""

    group: PagedGroup
    bases: tuple[int, ...]
    table: int
    """The bases again, on the GPU."""


class GpuParts(NamedTuple):
    """What all lanes of one GPU share."""

    driver: GpuDriver
    kernels: PageKernels
    tables: Tables
    ordering: Ordering
    completions: Completions
    arena: ArenaSide


@dataclass(frozen=True, slots=True)
class _Plan:
    """One part of a job."""

    mapped: MappedGroup
    shape: PageShape
    pieces: tuple[Piece, ...]
    first_block: int
    """Where its block ids begin among those of the job."""


class Lane:
    """`submit` may be called by any thread; transfers happen in that order."""

    def __init__(self, parts: GpuParts, number: int, staging_bytes: int) -> None:
        self._parts = parts
        self.number = number
        self.staging_bytes = staging_bytes
        self._turn = threading.Lock()  # held while calling the driver, by users of this lane only
        self._bounce: tuple[int, int] | None = None
        self._aborted: Pending | None = None
        """One that failed on its way and is not over."""
        self._waiters = (Waiter(parts.driver), Waiter(parts.driver))
        driver = parts.driver
        with ExitStack() as undo:
            self._staging = tuple(self._make_staging(undo) for _ in range(2))
            self._fork, self._join = (self._made(undo, driver.create_event(False), driver.destroy_event) for _ in "fj")
            self._slot = self._made(undo, parts.ordering.take_slot(), parts.ordering.give_slot)
            self._owned = undo.pop_all()

    def fill(self, table: Table, count: int) -> None:
        """The GPU has these numbers when this returns.  Raises DeviceError."""
        with self._turn:
            # A waiter of the lane, because it must be there as long as the GPU may post it.
            self._parts.tables.upload(table, count, self._staging[0].stream)
            self._waiters[0].mark(self._staging[0].stream)
            self._waiters[0].wait()

    def close(self) -> None:
        """Nothing of it runs any more."""
        with self._owned:
            for address in self._bounce or ():
                self._parts.driver.free_host(address)

    def submit(
        self, job: TransferJob, groups: Sequence[MappedGroup], gather: bool, peer: Peer, end: Callable[[bool], None]
    ) -> bytes:
        """The handle of the event behind it; `end` is called once then.  Raises DeviceError, and `end` is not called, when
        nothing was begun, and AbortedTransferError when it failed later: `end` is called when nothing of it runs any more."""
        completions = self._parts.completions
        blocks = [block for part in job.parts for block in part.blocks]
        with self._turn:
            if completions.failure is not None:
                raise DeviceError(f"the GPU cannot be used any more: {completions.failure}")
            if self._aborted is not None:
                # What is in the streams may still have to read the buffers that this one would fill.
                raise DeviceError("a transfer that failed before is still waiting for the worker or the GPU")
            plans = tuple(self._plans(job.parts, groups, gather))
            side = self._side(plans)
            pending, table = self._begin(job, peer, blocks, end)
            try:
                pending.ready.wait(self._staging[0].stream)
                self._parts.tables.upload(table, len(blocks), self._staging[0].stream)
                self._behind(self._fork, 0, 1)
                self._move(plans, gather, side, table.device)
                self._behind(self._join, 1, 0)
                handle = self._parts.ordering.signal(self._slot, pending.event, self._staging[0].stream)
                completions.add(self.number, pending, self._staging[0].stream)
            except DeviceError as error:
                logger.error("a transfer failed on its way gpu=%s reason=%s", self._parts.driver.info.uuid, error)
                lasting = str(error) if isinstance(error, DriverError) and error.lasting else None
                raise AbortedTransferError(str(error), self._abort(pending, lasting)) from None
            except Exception as error:  # whatever it is, something of the transfer runs, and its end must be reported
                logger.exception("a transfer failed on its way gpu=%s", self._parts.driver.info.uuid)
                raise AbortedTransferError(str(error), self._abort(pending, None)) from None
        return handle

    # --- planning: nothing is in the streams yet

    def _plans(self, parts: Sequence[TransferPart], groups: Sequence[MappedGroup], gather: bool) -> Iterator[_Plan]:
        first_block = 0
        for part in parts:
            mapped = groups[part.group]
            each, rest = divmod(len(part.blocks), len(part.objects) or 1)
            if rest or not each or min(part.blocks) < -1 or max(part.blocks) >= mapped.group.blocks:
                raise DeviceError(f"{len(part.blocks)} block ids for {len(part.objects)} objects do not fit the cache")
            try:
                shape = page_shape(mapped.group, each, mapped.bases)
            except ValueError as error:
                raise DeviceError(str(error)) from None
            if shape.plane_bytes > self.staging_bytes:
                raise DeviceError(
                    f"one layer of a chunk has {shape.plane_bytes} bytes; staging has {self.staging_bytes}"
                )
            self._parts.kernels.prepare(shape, gather)
            seam = self._parts.arena.seam_bytes
            pieces = pieces_of(part.group, shape, len(mapped.bases), part.objects, self.staging_bytes, seam)
            yield _Plan(mapped, shape, tuple(pieces), first_block)
            first_block += len(part.blocks)

    def _side(self, plans: Sequence[_Plan]) -> HostSide:
        arena, driver = self._parts.arena, self._parts.driver
        if arena.file is not None and arena.region is not None:
            return FileSide(arena.file, arena.region, self._staging, self._waiters)
        # All are asked about, so that all are pinned soon.
        covered = [
            arena.covers(run.address, run.length) for plan in plans for piece in plan.pieces for run in piece.runs
        ]
        if all(covered):
            return PinnedSide(driver, self._staging)
        if self._bounce is None:
            first = driver.allocate_host(self.staging_bytes)
            try:
                self._bounce = (first, driver.allocate_host(self.staging_bytes))
            except DeviceError:
                driver.free_host(first)
                raise
        return BounceSide(driver, self._staging, self._bounce, self._waiters)

    # --- submitting

    def _begin(
        self, job: TransferJob, peer: Peer, blocks: Sequence[int], end: Callable[[bool], None]
    ) -> tuple[Pending, Table]:
        """What the transfer takes, and gives back when it is over."""
        ordering, tables = self._parts.ordering, self._parts.tables
        with ExitStack() as undo:
            ready = peer.ready(job.ready)
            undo.callback(ready.close)
            event = self._made(undo, ordering.take_event(), ordering.give_event)
            table = self._made(undo, tables.take(blocks), tables.give)
            taken = undo.pop_all()

        def ended(pending: Pending, arrived: bool) -> None:
            if self._aborted is pending:
                self._aborted = None
            try:
                taken.close()
            finally:
                end(arrived)

        return Pending(event, ready, ended), table

    def _behind(self, event: int, first: int, second: int) -> None:
        """What comes in the second stream happens after what is in the first by now."""
        self._parts.driver.record(event, self._staging[first].stream)
        self._parts.driver.wait_event(self._staging[second].stream, event)

    def _move(self, plans: Sequence[_Plan], gather: bool, side: HostSide, table: int) -> None:
        pieces = ((plan, piece) for plan in plans for piece in plan.pieces)
        for number, (plan, piece) in enumerate(pieces):
            turn = number % 2
            if gather:
                side.before_gather(turn)
                self._launch(plan, piece, True, turn, table)
                side.to_host(turn, piece)
            else:
                side.to_device(turn, piece)
                self._launch(plan, piece, False, turn, table)
                side.scattered(turn)
        side.finish()

    def _launch(self, plan: _Plan, piece: Piece, gather: bool, turn: int, table: int) -> None:
        stream, staged = self._staging[turn]
        self._parts.kernels.move(
            plan.shape,
            gather,
            plan.mapped.table,
            table + (plan.first_block + piece.first_object * plan.shape.blocks) * ITEM_BYTES,
            staged,
            piece.object_bytes,
            piece.objects,
            range(piece.first_plane, piece.end_plane),
            stream,
        )

    def _abort(self, pending: Pending, lasting: str | None) -> bytes:
        """Something of it is in the streams.  It is over when they are empty, at the event whose handle is returned; where
        even that cannot be reported, this GPU is of no use any more."""
        completions, stream = self._parts.completions, self._staging[0].stream
        pending.arrives = False
        self._aborted = pending
        try:
            if lasting is None:
                self._behind(self._join, 1, 0)
                handle = self._parts.ordering.signal(self._slot, pending.event, stream)
                completions.add(self.number, pending, stream)
                return handle
        except DeviceError as last:
            lasting = str(last)
        completions.fail(lasting, (self.number, pending))
        return b""

    # --- building

    def _make_staging(self, undo: ExitStack) -> Staging:
        driver = self._parts.driver
        stream = self._made(undo, driver.create_stream(), driver.destroy_stream)
        return Staging(stream, self._made(undo, driver.allocate(self.staging_bytes), driver.free))

    @staticmethod
    def _made(undo: ExitStack, thing: _Thing, unmake: Callable[[_Thing], None]) -> _Thing:
        undo.callback(unmake, thing)
        return thing
