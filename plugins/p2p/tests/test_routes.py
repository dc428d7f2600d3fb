"""Which channel a session reads by: the first one whose reads bring what they should."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from lmcache_core import BuffersReleased, CompletionQueue, JobDone, JobId, Outcome, RemoteRead, Route, TransferChannel
from lmcache_p2p import shm_channel
from lmcache_p2p.peer import Peer
from plugins.p2p.tests.rig import BOTH, ReaderRig, ScriptedOwner, shm

DONE = Outcome.DONE


@pytest.fixture
def owner() -> Iterator[ScriptedOwner]:
    with ScriptedOwner(channels=BOTH) as owner:
        yield owner


@pytest.fixture
def rig(owner: ScriptedOwner) -> Iterator[ReaderRig]:
    with ReaderRig(owner, channels=BOTH, lookup_timeout=20) as rig:
        yield rig


def peer_of(rig: ReaderRig) -> Peer:
    (peer,) = rig.reader.peers
    return peer


def test_the_first_channel_of_both_is_used(rig: ReaderRig) -> None:
    assert rig.lookup(0, 1) == [DONE, DONE]
    assert rig.load(0, 1) == [DONE, DONE]
    assert (rig.counts()["channel"], rig.counts()["submitted"]) == ("shm", 2)


def test_one_that_connects_and_does_not_read_is_left_for_the_next(
    rig: ReaderRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The load does not notice, and the rest of the session goes by the next."""
    monkeypatch.setattr(shm_channel.Segment, "has_owner", False)
    assert rig.lookup(0, 1, 2) == [DONE] * 3
    assert rig.counts()["channel"] == "shm"
    assert rig.load(0, 1) == [DONE, DONE]
    assert rig.load(2) == [DONE]
    counts = rig.counts()
    assert (counts["channel"], counts["submitted"], counts["read"], counts["unread"]) == ("tcp", 5, 3, 2)
    assert "transfer channel is left: its reads fail peer=owner name=shm" in caplog.text


def test_one_that_brings_wrong_bytes_from_the_first_read_on_is_left(
    owner: ScriptedOwner, rig: ReaderRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not counted against the peer."""
    right = shm_channel.ShmRoute.submit_read

    def beside(route: shm_channel.ShmRoute, secret: bytes, reads: Sequence[RemoteRead]) -> JobId:
        return right(route, secret, [RemoteRead(read.offset + 8192, read.buffer) for read in reads])

    monkeypatch.setattr(shm_channel.ShmRoute, "submit_read", beside)
    assert rig.lookup(0, 1, 2, 3) == [DONE] * 4
    assert rig.load(0, 1, 2, 3) == [DONE] * 4
    assert rig.counts()["channel"] == "tcp"
    assert rig.counts()["damaged"] == 0


def test_a_damaged_object_later_on_is_the_owners_fault(owner: ScriptedOwner, rig: ReaderRig) -> None:
    assert rig.lookup(0, 1) == [DONE, DONE]
    assert rig.load(0) == [DONE]
    owner.objects[next(iter(owner.objects))].view[5000] ^= 1
    assert rig.load(0) == [Outcome.DAMAGED]
    assert (rig.counts()["channel"], rig.counts()["damaged"]) == ("shm", 1)


def test_where_no_other_one_is_left_the_last_is_kept(rig: ReaderRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm_channel.Segment, "has_owner", False)
    with (
        ScriptedOwner("alone", channels={"shm": shm}) as alone,
        ReaderRig(alone, channels=BOTH, lookup_timeout=20) as only,
    ):
        assert only.lookup(0) == [DONE]
        assert only.load(0) == [Outcome.FAILED]
        assert peer_of(only).session


def test_a_peer_whose_channels_have_all_gone_is_not_asked_for_a_while(owner: ScriptedOwner, rig: ReaderRig) -> None:
    """As when its process has ended."""
    assert rig.lookup(0) == [DONE]
    for channel in owner.channels.values():
        channel.close(1.0)
    assert rig.load(0) == [Outcome.FAILED]
    assert not peer_of(rig).session
    assert not peer_of(rig).is_open


def test_loads_at_the_same_time_leave_a_channel_once(rig: ReaderRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm_channel.Segment, "has_owner", False)
    assert rig.lookup(*range(8)) == [DONE] * 8
    found: list[list[Outcome]] = []
    threads = [threading.Thread(target=lambda number=number: found.append(rig.load(number))) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found == [[DONE]] * 8
    assert rig.counts()["channel"] == "tcp"


class LateRelease(TransferChannel):
    """Says that its reads have failed, and writes into the buffers until it is allowed to stop."""

    def __init__(self) -> None:
        self.queue, self.reads = CompletionQueue(), list[RemoteRead]()

    def describe(self) -> bytes:
        return b""

    def connect(self, description: bytes) -> Route:
        return LateRoute(self)

    def completions(self) -> CompletionQueue:
        return self.queue

    def close(self, deadline_seconds: float) -> None:
        pass


class LateRoute(Route):
    def __init__(self, channel: LateRelease) -> None:
        self.channel = channel

    def submit_read(self, secret: bytes, reads: Sequence[RemoteRead]) -> JobId:
        self.channel.reads += reads
        self.channel.queue.post(JobDone(JobId(1), (Outcome.TIMED_OUT,) * len(reads), released=False))
        return JobId(1)

    def close(self) -> None:
        pass


def test_buffers_are_given_back_when_the_channel_has_released_them(owner: ScriptedOwner) -> None:
    """Not with the outcome, which may come before."""
    late = LateRelease()
    owner.channels["late"] = late
    rig = ReaderRig(owner, channels={}, lookup_timeout=20)
    rig.channels["late"] = late
    with rig:
        assert rig.lookup(0) == [DONE]
        found: list[list[Outcome]] = []
        loading = threading.Thread(target=lambda: found.append(rig.load(0)))
        loading.start()
        loading.join(0.5)
        assert late.reads, "it has begun"
        rig.unpin(0)
        assert rig.lookup(99) == [Outcome.MISSING]
        assert "end" not in owner.asked, "the lease is read under"
        assert loading.is_alive(), "the buffer may still be written to"
        late.queue.post(BuffersReleased(JobId(1)))
        loading.join(20)
        assert found == [[Outcome.TIMED_OUT]]
        assert rig.lookup(99) == [Outcome.MISSING]
        assert "end" in owner.asked
