"""Waiting answers beside a model: connections that read, stop, come back and end in any order, on a clock of the test."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lmcache_client.codec import Frame
from lmcache_core.server import engine_socket
from lmcache_core.server.engine_socket import Envelope, Sent, WaitingAnswers
from lmcache_core.server.peers import PeerSocket
from lmcache_devkit import FakeClock

PATIENCE_SECONDS = 5.0
CONNECTIONS = (b"a", b"b", b"c")
connections = st.sampled_from(CONNECTIONS)


class _Peer:
    """A connection: libzmq takes `room` more answers of it."""

    def __init__(self) -> None:
        self.room = 0
        self.mark = 0
        self.is_open = True
        self.quiet_since = 0.0

    def read_mark(self) -> int | None:
        return self.mark if self.is_open else None

    def hang_up(self) -> bool:
        was_open, self.is_open = self.is_open, False
        return was_open


class WaitingAnswersMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.peers = {connection: _Peer() for connection in CONNECTIONS}
        self.given: Counter[bytes] = Counter()
        self.sent: Counter[bytes] = Counter()
        self.latest = dict.fromkeys(CONNECTIONS, -1)
        self.has_ended: set[bytes] = set()
        self.waiting = WaitingAnswers(self._send, self.peers.get, self.clock, PATIENCE_SECONDS)  # type: ignore[arg-type]

    def _send(self, envelope: Envelope, result: Sequence[Frame]) -> Sent:
        connection, number = envelope[0], int(envelope[1])
        peer = self.peers[connection]
        if not peer.is_open:
            return Sent.GONE
        if not peer.room:
            return Sent.FULL
        assert number > self.latest[connection], "an answer was sent twice, or before an older one"
        assert number == self.latest[connection] + 1 or connection in self.has_ended, "one was left out"
        peer.room -= 1
        peer.quiet_since = self.clock.monotonic()
        self.latest[connection] = number
        self.sent[connection] += 1
        return Sent.DONE

    @rule(connection=connections, size=st.integers(0, 100))
    def answer(self, connection: bytes, size: int) -> None:
        if connection not in self.waiting.queues:
            self.peers[connection].quiet_since = self.clock.monotonic()
        self.waiting.add((connection, str(self.given[connection]).encode(), b""), (bytes(size),))
        self.given[connection] += 1

    @rule(connection=connections, room=st.integers(1, 5))
    def read(self, connection: bytes, room: int) -> None:
        self.peers[connection].room += room

    @rule(connection=connections)
    def read_a_little(self, connection: bytes) -> None:
        """Too little for libzmq to take another answer."""
        self.peers[connection].mark += 1
        self.peers[connection].quiet_since = self.clock.monotonic()

    @rule(connection=connections)
    def end(self, connection: bytes) -> None:
        self.peers[connection].is_open = False
        self.has_ended.add(connection)

    @rule(connection=connections)
    def connect_again(self, connection: bytes) -> None:
        """By the same identity, once the old connection is done with."""
        if not self.peers[connection].is_open and connection not in self.waiting.queues:
            self.peers[connection] = _Peer()

    @rule(seconds=st.floats(0.0, 8.0))
    def wait(self, seconds: float) -> None:
        until = self.clock.monotonic() + seconds
        while self.waiting.retry_at <= until:
            self.clock.advance(max(0.0, self.waiting.retry_at - self.clock.monotonic()))
            was_open = [connection for connection, peer in self.peers.items() if peer.is_open]
            self.waiting.retry()
            for connection in was_open:
                if not self.peers[connection].is_open:
                    quiet = self.clock.monotonic() - self.peers[connection].quiet_since
                    assert quiet > PATIENCE_SECONDS - 0.001, f"closed although it read {quiet} s ago"
                    self.has_ended.add(connection)
        self.clock.advance(max(0.0, until - self.clock.monotonic()))

    @invariant()
    def a_retry_is_due_where_anything_waits(self) -> None:
        due = self.waiting.retry_at <= self.clock.monotonic() + engine_socket.PAUSE_MAX_SECONDS
        assert due == any(connection in self.waiting.queues for connection in CONNECTIONS)

    @invariant()
    def every_answer_is_accounted_for(self) -> None:
        ended = sum(self.sent.values()) + len(self.waiting) + self.waiting.dropped
        assert sum(self.given.values()) == ended
        assert self.has_ended or not self.waiting.dropped
        answers = len(self.waiting)
        assert answers * engine_socket.ANSWER_BYTES <= self.waiting.size_bytes
        assert self.waiting.size_bytes <= answers * (100 + engine_socket.ANSWER_BYTES)

    @invariant()
    def nothing_open_is_left_unread_for_long(self) -> None:
        for connection, peer in self.peers.items():
            if peer.is_open and connection in self.waiting.queues and not peer.room:
                assert self.clock.monotonic() - peer.quiet_since < PATIENCE_SECONDS + 8.0 + 1.0

    def teardown(self) -> None:
        """Who reads everything gets everything."""
        for peer in self.peers.values():
            peer.room = 10**6
        for _ in range(5):
            self.clock.advance(engine_socket.PAUSE_MAX_SECONDS)
            self.waiting.retry()
        assert len(self.waiting) == 0
        for connection in set(CONNECTIONS) - self.has_ended:
            assert self.sent[connection] == self.given[connection]


WaitingAnswersMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestWaitingAnswers = WaitingAnswersMachine.TestCase


def test_a_queue_that_only_grows_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_socket, "ANSWERS_MAX", 100)
    peer = _Peer()
    waiting = WaitingAnswers(lambda envelope, result: Sent.FULL, lambda _: peer, FakeClock(), 60.0)  # type: ignore[arg-type, return-value]
    for number in range(150):
        waiting.add((b"a", str(number).encode(), b""), ())
    assert (len(waiting), waiting.closed, waiting.dropped, peer.is_open) == (0, 1, 150, False)
    assert b"a" in waiting.congested, "nothing more is carried out for it"


def test_a_descriptor_that_another_connection_has_by_now_is_left_alone() -> None:
    first = socket.socketpair()
    descriptor = first[0].fileno()
    name = PeerSocket.of(descriptor)
    assert name is not None
    assert name.is_open
    for end in first:
        end.close()
    assert PeerSocket.of(descriptor) is None
    assert not name.hang_up()
    second = socket.socketpair()
    assert second[0].fileno() == descriptor, "the lowest free one is taken"
    assert not name.hang_up()
    assert name.read_mark() is None
    second[1].sendall(b"still there")
    assert second[0].recv(64) == b"still there"
    for end in second:
        end.close()


def test_patience_begins_again_with_each_answer_that_is_taken() -> None:
    peer, clock = _Peer(), FakeClock()
    room = [0]

    def send(envelope: Envelope, result: Sequence[Frame]) -> Sent:
        if not room[0]:
            return Sent.FULL
        room[0] -= 1
        return Sent.DONE

    waiting = WaitingAnswers(send, lambda _: peer, clock, PATIENCE_SECONDS)  # type: ignore[arg-type, return-value]
    for number in range(5):
        waiting.add((b"a", str(number).encode(), b""), ())

    def wait(seconds: float) -> None:
        until = clock.monotonic() + seconds
        while waiting.retry_at <= until:
            clock.advance(waiting.retry_at - clock.monotonic())
            waiting.retry()
        clock.advance(until - clock.monotonic())

    for left in (5, 4, 3):
        wait(0.8 * PATIENCE_SECONDS)
        assert (len(waiting), waiting.closed) == (left, 0)
        room[0] = 1
    wait(0.9 * PATIENCE_SECONDS)
    assert (len(waiting), waiting.closed) == (2, 0)
    wait(0.2 * PATIENCE_SECONDS)
    assert (len(waiting), waiting.closed, waiting.dropped) == (0, 1, 2)
