"""Transfer channels: a right one and mutants."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Sequence
from typing import ClassVar, Final

from lmcache_client.errors import LMCacheError
from lmcache_core import (
    BorrowedBuffer,
    ChannelContext,
    CompletionQueue,
    JobDone,
    JobId,
    Outcome,
    RemoteRead,
    Route,
    TransferChannel,
)
from lmcache_devkit.transfer_channel_suite import TransferChannelSuite
from plugins.devkit.tests.mutants.planted import Planted

OPENED: Final[dict[bytes, Right]] = {}
_FOREVER: Final = threading.Event()


class Right(TransferChannel):
    """Copies from the region of another channel of this process; each mutant below is wrong in one thing."""

    padding: ClassVar[int] = 0
    """Bytes that the description is longer."""

    def __init__(self, settings: None, context: ChannelContext) -> None:
        self.context, self.queue, self.numbers = context, CompletionQueue(), itertools.count(1)
        self.name = f"{type(self).__name__} {id(self)}".encode() + b" " * self.padding
        self.leases: dict[bytes, tuple[tuple[int, int], ...]] = {}
        OPENED[self.name] = self

    def describe(self) -> bytes:
        return self.name

    def connect(self, description: bytes) -> Route:
        if description not in OPENED:
            raise LMCacheError("it is not here")
        return RightRoute(self, description)

    def expose(self, secret: bytes, extents: Sequence[tuple[int, int]]) -> None:
        self.leases[secret] = tuple(extents)

    def hide(self, secret: bytes) -> None:
        self.leases.pop(secret, None)

    def completions(self) -> CompletionQueue:
        return self.queue

    def close(self, deadline_seconds: float) -> None:
        OPENED.pop(self.name, None)

    def allows(self, secret: bytes, offset: int, end: int) -> bool:
        return any(at <= offset and end <= at + size for at, size in self.leases.get(secret, ()))

    def copy(self, source: memoryview, buffer: BorrowedBuffer) -> None:
        buffer.view[:] = source

    def serve(self, secret: bytes, read: RemoteRead) -> Outcome:
        offset, end = read.offset, read.offset + read.buffer.length
        if not self.allows(secret, offset, end):
            return Outcome.MISSING
        self.copy(self.context.region.view[offset:end], read.buffer)
        return Outcome.DONE

    def owner_of(self, peer: bytes) -> Right | None:
        return OPENED.get(peer)

    def outcomes(self, outcomes: list[Outcome]) -> list[Outcome]:
        return outcomes

    def number(self) -> JobId:
        return JobId(next(self.numbers))

    def answer(self, job: JobId, outcomes: Sequence[Outcome]) -> None:
        self.queue.post(JobDone(job, tuple(outcomes)))

    def read(self, route: RightRoute, secret: bytes, reads: Sequence[RemoteRead]) -> JobId:
        owner = None if route.closed else self.owner_of(route.peer)
        outcomes = [Outcome.FAILED if owner is None else owner.serve(secret, read) for read in reads]
        job = self.number()
        self.answer(job, self.outcomes(outcomes))
        return job


class RightRoute(Route):
    def __init__(self, channel: Right, peer: bytes) -> None:
        self.channel, self.peer, self.closed = channel, peer, False

    def submit_read(self, secret: bytes, reads: Sequence[RemoteRead]) -> JobId:
        return self.channel.read(self, secret, reads)

    def close(self) -> None:
        self.closed = True


PLANTED = Planted("transfer_channels.py", Right)


@PLANTED.killed_by("its_description_is_short")
class DescribesAtLength(Right):
    padding = 5000


@PLANTED.killed_by("a_leased_extent_is_read_and_nothing_beside_it_is_written")
class ReadsWholePages(Right):
    def copy(self, source: memoryview, buffer: BorrowedBuffer) -> None:
        whole = -(-buffer.length // 4096) * 4096
        BorrowedBuffer(buffer.region, buffer.offset, whole).view[:] = bytes(source).ljust(whole, b"\0")


@PLANTED.killed_by("a_batch_is_answered_in_its_order")
class ReadsFromTheBeginningOfThePage(Right):
    def serve(self, secret: bytes, read: RemoteRead) -> Outcome:
        return super().serve(secret, RemoteRead(read.offset // 8 * 8, read.buffer))


@PLANTED.killed_by("large_reads_arrive_whole")
class ReadsAMebibyte(Right):
    def copy(self, source: memoryview, buffer: BorrowedBuffer) -> None:
        buffer.view[: 1 << 20] = source[: 1 << 20]


@PLANTED.killed_by("a_job_of_no_reads_is_answered", "is not answered and released")
class ForgetsEmptyJobs(Right):
    def answer(self, job: JobId, outcomes: Sequence[Outcome]) -> None:
        if outcomes:
            super().answer(job, outcomes)


@PLANTED.killed_by("jobs_of_several_threads_are_each_answered_once")
class NumbersJobsWithoutALock(Right):
    last = 0

    def number(self) -> JobId:
        number = self.last + 1
        time.sleep(0.01)
        self.last = number
        return JobId(number)


@PLANTED.killed_by("what_was_not_leased_is_not_read", "is Outcome.DONE")
class LooksAtTheOffsetAlone(Right):
    def allows(self, secret: bytes, offset: int, end: int) -> bool:
        return any(at <= offset < at + size for at, size in self.leases.get(secret, ()))


@PLANTED.killed_by("what_was_not_leased_is_not_read", "is Outcome.DONE")
class TakesAnySecret(Right):
    def allows(self, secret: bytes, offset: int, end: int) -> bool:
        extents = [each for lease in self.leases.values() for each in lease]
        return any(at <= offset and end <= at + size for at, size in extents)


@PLANTED.killed_by("after_the_end_of_a_lease_nothing_is_read")
class KeepsLeases(Right):
    def hide(self, secret: bytes) -> None:
        pass


@PLANTED.killed_by("a_foreign_description_is_an_error")
class TripsOverDescriptions(Right):
    def connect(self, description: bytes) -> Route:
        return RightRoute(self, OPENED[description].name)


@PLANTED.killed_by("a_closed_route_fails_its_jobs_and_touches_nothing")
class ReadsOnClosedRoutes(Right):
    def connect(self, description: bytes) -> Route:
        route = super().connect(description)
        route.close = lambda: None  # type: ignore[method-assign]
        return route


@PLANTED.killed_by("a_closed_route_fails_its_jobs_and_touches_nothing", "written to after its job was released")
class WritesOnAfterTheRelease(Right):
    def copy(self, source: memoryview, buffer: BorrowedBuffer) -> None:
        super().copy(source, buffer)
        if buffer.length > 1 << 20:
            threading.Timer(0.1, super().copy, (source, buffer)).start()


@PLANTED.killed_by("an_owner_that_has_gone_is_a_failure")
class SaysDoneWithoutAnOwner(Right):
    def outcomes(self, outcomes: list[Outcome]) -> list[Outcome]:
        return [Outcome.DONE] * len(outcomes)


@PLANTED.killed_by("it_can_be_closed_in_the_middle_of_reads", "is not answered and released")
class DropsAnswersWhenItCloses(Right):
    def close(self, deadline_seconds: float) -> None:
        super().close(deadline_seconds)
        self.queue.drain()


@PLANTED.killed_by("opening_and_closing_leaves_no_thread_and_no_descriptor", "threads are left")
class LeavesAThread(Right):
    def __init__(self, settings: None, context: ChannelContext) -> None:
        super().__init__(settings, context)
        threading.Thread(target=_FOREVER.wait, daemon=True).start()


@PLANTED.killed_by("opening_and_closing_leaves_no_thread_and_no_descriptor", "descriptors are left")
class LeavesADescriptor(Right):
    def __init__(self, settings: None, context: ChannelContext) -> None:
        super().__init__(settings, context)
        os.eventfd(0)


_SUITES = PLANTED.suites(TransferChannelSuite, __name__)
for _suite in _SUITES.values():
    _suite.answer_seconds = 5.0  # type: ignore[attr-defined]
globals().update(_SUITES)
