"""Conformance checks of a transfer channel, as tests.  A distribution runs them with two lines:

class TestAcme(TransferChannelSuite):
    offer = "acme"
"""

from __future__ import annotations

import logging
import os
import random
import select
import threading
import time
from collections.abc import Iterator, Sequence
from typing import ClassVar, Final, NamedTuple

import pytest

from lmcache_client.errors import LMCacheError
from lmcache_core.contracts.clock import SystemClock
from lmcache_core.contracts.completion import BuffersReleased, CompletionSource, JobDone, JobId
from lmcache_core.contracts.l1_memory import BorrowedBuffer
from lmcache_core.contracts.transfer_channel import SECRET_BYTES, ChannelContext, RemoteRead, Route, TransferChannel
from lmcache_core.model.results import Outcome
from lmcache_devkit.borrowed_memory import UNWRITTEN, BorrowedMemory
from lmcache_devkit.check_limit import CheckLimit
from lmcache_devkit.offer_under_test import OfferSuite, OpenableOffer

HOST: Final = "127.0.0.1"
REGION_BYTES: Final = 16 << 20
DESCRIPTION_BYTES_MAX: Final = 4096
CLOSE_SECONDS: Final = 20.0
END_SECONDS: Final = 5.0
"""How long threads may outlive `close`."""
SECRET: Final = bytes(range(SECRET_BYTES))
OTHER: Final = bytes(reversed(SECRET))


class Side(NamedTuple):
    """One server: its memory and its channel."""

    memory: BorrowedMemory
    channel: TransferChannel


class Pair:
    """An owner whose memory is full of bytes that differ everywhere, and a reader that is connected to it."""

    def __init__(self, owner: Side, reader: Side, seconds: float) -> None:
        self.owner, self.reader, self._seconds = owner, reader, seconds
        self.source = owner.memory.region.view
        self.source[:] = random.Random(1).randbytes(len(self.source))
        self._answered: dict[JobId, JobDone] = {}
        self._released: set[JobId] = set()
        self.route: Route = reader.channel.connect(owner.channel.describe())

    def reads(self, *extents: tuple[int, int]) -> list[RemoteRead]:
        return [RemoteRead(offset, self.reader.memory.lend(length)) for offset, length in extents]

    def wait(self, job: JobId) -> tuple[Outcome, ...]:
        """The outcomes of a job whose buffers are released.  Fails when that takes too long, or comes twice."""
        until = time.monotonic() + self._seconds
        while not (job in self._answered and job in self._released):
            left = until - time.monotonic()
            assert left > 0, f"job {job} is not answered and released within {self._seconds} s"
            self._take(self.reader.channel.completions(), left)
        return self._answered[job].outcomes

    def read(self, secret: bytes, reads: Sequence[RemoteRead]) -> tuple[Outcome, ...]:
        return self.wait(self.route.submit_read(secret, reads))

    def _take(self, source: CompletionSource, seconds: float) -> None:
        poll = select.poll()
        poll.register(source.fileno(), select.POLLIN)
        poll.poll(seconds * 1000)
        for completion in source.drain():
            match completion:
                case JobDone(job, _, released):
                    assert job not in self._answered, f"job {job} is answered twice"
                    self._answered[job] = completion
                    if released:
                        self._released.add(job)
                case BuffersReleased(job):
                    assert job not in self._released, f"the buffers of job {job} are released twice"
                    self._released.add(job)

    def has(self, read: RemoteRead) -> bool:
        """Is what was read what the owner has there?"""
        return read.buffer.view == self.source[read.offset : read.offset + read.buffer.length]


class TransferChannelSuite(OfferSuite):
    """Set `offer`; override `settings` where the channel needs some."""

    kind: ClassVar[str] = "transfer_channel"
    answer_seconds: ClassVar[float] = 40.0
    """More than the channel's own limit without progress."""

    @pytest.fixture
    def pair(self, under_test: OpenableOffer) -> Iterator[Pair]:
        owner, reader = self._side(under_test, "owner"), self._side(under_test, "reader")
        try:
            pair = Pair(owner, reader, self.answer_seconds)
            yield pair
            pair.route.close()
        finally:
            for side in (reader, owner):
                with CheckLimit().limit(CLOSE_SECONDS, "close"):
                    side.channel.close(1.0)
                side.memory.close()

    def _side(self, under_test: OpenableOffer, name: str) -> Side:
        memory = BorrowedMemory(REGION_BYTES, shared=True)
        context = ChannelContext(
            memory.region, HOST, f"boot-of-{name}".ljust(32, "0"), SystemClock(), logging.getLogger(f"channel.{name}")
        )
        try:
            channel = under_test.open(context)
        except BaseException:
            memory.close()
            raise
        assert isinstance(channel, TransferChannel)
        return Side(memory, channel)

    def test_its_description_is_short(self, pair: Pair) -> None:
        """It is sent to each peer."""
        description = pair.owner.channel.describe()
        assert isinstance(description, bytes)
        assert len(description) <= DESCRIPTION_BYTES_MAX

    def test_a_leased_extent_is_read_and_nothing_beside_it_is_written(self, pair: Pair) -> None:
        """One byte before and behind each buffer stays as it was."""
        pair.owner.channel.expose(SECRET, [(8192, 10_000)])
        around = pair.reader.memory.lend(3 * 4096)
        buffer = BorrowedBuffer(around.region, around.offset + 4096, 5000)
        read = RemoteRead(8192 + 123, buffer)
        assert pair.read(SECRET, [read]) == (Outcome.DONE,)
        assert pair.has(read)
        assert around.view[:4096] == UNWRITTEN * 4096
        assert around.view[4096 + 5000 :] == UNWRITTEN * (2 * 4096 - 5000)

    def test_a_batch_is_answered_in_its_order(self, pair: Pair) -> None:
        """Of several hundred reads from several extents, each buffer has the bytes of its own offset."""
        extents = [(block * 8192, 8192) for block in range(700)]
        pair.owner.channel.expose(SECRET, extents)
        wanted = [(block * 8192 + block % 7, 100 + block) for block in random.Random(2).sample(range(700), 700)]
        reads = pair.reads(*wanted)
        assert pair.read(SECRET, reads) == (Outcome.DONE,) * 700
        assert all(map(pair.has, reads))

    def test_large_reads_arrive_whole(self, pair: Pair) -> None:
        """To the last byte of the region."""
        pair.owner.channel.expose(SECRET, [(0, REGION_BYTES)])
        half = REGION_BYTES // 2
        reads = pair.reads((half, half), (0, half // 2 + 1))
        assert pair.read(SECRET, reads) == (Outcome.DONE, Outcome.DONE)
        assert all(map(pair.has, reads))

    def test_a_job_of_no_reads_is_answered(self, pair: Pair) -> None:
        """Like any other."""
        assert pair.read(SECRET, []) == ()

    def test_jobs_of_several_threads_are_each_answered_once(self, pair: Pair) -> None:
        """With the bytes that each asked for."""
        pair.owner.channel.expose(SECRET, [(0, REGION_BYTES)])
        batches = [pair.reads(*((4096 * (8 * thread + each), 4096) for each in range(8))) for thread in range(16)]
        jobs: list[JobId] = []

        def submit(batch: Sequence[RemoteRead]) -> None:
            jobs.append(pair.route.submit_read(SECRET, batch))

        threads = [threading.Thread(target=submit, args=(batch,)) for batch in batches]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(self.answer_seconds)
        assert len(set(jobs)) == len(batches)
        assert [pair.wait(job) for job in jobs] == [(Outcome.DONE,) * 8] * len(batches)
        assert all(pair.has(read) for batch in batches for read in batch)

    def test_what_was_not_leased_is_not_read(self, pair: Pair) -> None:
        """Another lease's secret, an unknown one, bytes in front of and behind the extent."""
        _require_apart(pair)
        pair.owner.channel.expose(SECRET, [(8192, 4096)])
        pair.owner.channel.expose(OTHER, [(65_536, 4096)])
        for secret, extent in [
            (OTHER, (8192, 4096)),
            (bytes(SECRET_BYTES), (8192, 4096)),
            (SECRET, (8191, 100)),
            (SECRET, (12_000, 4096)),
            (SECRET, (0, 1)),
            (SECRET, (REGION_BYTES - 1, 2)),
        ]:
            (read,) = pair.reads(extent)
            (outcome,) = pair.read(secret, [read])
            assert outcome in (Outcome.MISSING, Outcome.FAILED), f"{extent} is {outcome}"
        reads = pair.reads((8192, 4096))
        assert pair.read(SECRET, reads) == (Outcome.DONE,), "what was leased is read afterwards"

    def test_after_the_end_of_a_lease_nothing_is_read(self, pair: Pair) -> None:
        """And hiding it again does nothing."""
        _require_apart(pair)
        pair.owner.channel.expose(SECRET, [(0, 4096)])
        assert pair.read(SECRET, pair.reads((0, 4096))) == (Outcome.DONE,)
        pair.owner.channel.hide(SECRET)
        pair.owner.channel.hide(SECRET)
        assert pair.read(SECRET, pair.reads((0, 4096)))[0] in (Outcome.MISSING, Outcome.FAILED)

    @pytest.mark.parametrize("description", [b"", b"\x00" * 64, b"\xff" * 4096, "é".encode() * 50])
    def test_a_foreign_description_is_an_error(self, pair: Pair, description: bytes) -> None:
        """LMCacheError, so that the next channel is tried."""
        with pytest.raises(LMCacheError):
            pair.reader.channel.connect(description)

    def test_a_closed_route_fails_its_jobs_and_touches_nothing(self, pair: Pair) -> None:
        """Those under way and later ones; every one is answered and released."""
        pair.owner.channel.expose(SECRET, [(0, REGION_BYTES)])
        reads = pair.reads((0, REGION_BYTES // 2))
        under_way = pair.route.submit_read(SECRET, reads)
        pair.route.close()
        pair.route.close()
        pair.wait(under_way)
        late = pair.reads((0, 4096))
        assert pair.wait(pair.route.submit_read(SECRET, late)) == (Outcome.FAILED,)
        view = reads[0].buffer.view
        view[:] = UNWRITTEN * len(view)
        time.sleep(0.2)
        assert view == UNWRITTEN * len(view), "a buffer was written to after its job was released"
        assert late[0].buffer.view == UNWRITTEN * 4096

    def test_an_owner_that_has_gone_is_a_failure(self, pair: Pair) -> None:
        """Of this job and of the next, each answered in time."""
        pair.owner.channel.expose(SECRET, [(0, 4096)])
        assert pair.read(SECRET, pair.reads((0, 4096))) == (Outcome.DONE,)
        description = pair.owner.channel.describe()
        pair.owner.channel.close(1.0)
        for _ in range(2):
            assert pair.read(SECRET, pair.reads((0, 4096)))[0] in (Outcome.MISSING, Outcome.FAILED)
        try:
            pair.reader.channel.connect(description).close()
        except LMCacheError:
            pass

    def test_it_can_be_closed_in_the_middle_of_reads(self, pair: Pair) -> None:
        """Every job is answered, and closing it again does nothing."""
        pair.owner.channel.expose(SECRET, [(0, REGION_BYTES)])
        jobs = [pair.route.submit_read(SECRET, pair.reads((0, 1 << 20))) for _ in range(8)]
        for _ in range(2):
            with CheckLimit().limit(CLOSE_SECONDS, "close"):
                pair.reader.channel.close(1.0)
        for job in jobs:
            pair.wait(job)

    def test_opening_and_closing_leaves_no_thread_and_no_descriptor(self, under_test: OpenableOffer) -> None:
        """Of both sides, connected."""

        def once() -> None:
            owner, reader = self._side(under_test, "owner"), self._side(under_test, "reader")
            route = reader.channel.connect(owner.channel.describe())
            route.close()
            for side in (reader, owner):
                side.channel.close(1.0)
                side.memory.close()

        once()
        threads, descriptors = threading.active_count(), _descriptors()
        for _ in range(3):
            once()
        until = time.monotonic() + END_SECONDS
        while threading.active_count() > threads and time.monotonic() < until:
            time.sleep(0.02)
        assert threading.active_count() <= threads, "threads are left"
        assert _descriptors() <= descriptors, "descriptors are left"


def _require_apart(pair: Pair) -> None:
    if not pair.owner.channel.keeps_apart:
        pytest.skip("the channel does not keep leases apart")


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
