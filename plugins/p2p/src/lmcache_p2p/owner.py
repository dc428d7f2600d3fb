"""The owner's side: lets members in, and answers them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import msgspec
import zmq
from zmq.utils import z85

from lmcache_client.codec import NO_RESULT, Frame, OperationTable, encode_result
from lmcache_client.errors import ProtocolError
from lmcache_client.handoff import HANDOFF_SUBSCRIBE, UNKNOWN, HandoffState
from lmcache_client.sockets import open_socket
from lmcache_core import DEFERRED, Clock, FaultLog, Inbox, Storage, TransferChannel
from lmcache_p2p.coordinators import Members
from lmcache_p2p.identity import KeyPair
from lmcache_p2p.leases import Leases, Session, Task
from lmcache_p2p.messages import (
    END,
    HELLO,
    LOOKUP_AND_LOCK,
    OPERATIONS,
    QUERY_LOOKUP_RESULTS,
    RENEW,
    REQUEST_BYTES_MAX,
    UNLOCK_OBJECTS,
    Hello,
)

logger = logging.getLogger(__name__)

ZAP_ENDPOINT: Final = "inproc://zeromq.zap.01"
DOMAIN: Final = b"lmcache-peers"
WAIT_SECONDS: Final = 0.05
"""How long a question for results waits for them before it is answered that they are not there yet."""
ROUND_SECONDS: Final = 1.0
"""No lease is shorter, so that looking so often, and at the next deadline, ends each at its own."""
MESSAGES_MAX: Final = 64
TURN_SECONDS: Final = 0.05
"""Requests that are answered, and for how long, before handshakes, deadlines and results have their turn."""
COUNTED: Final = ("asked", "leased", "absent", "limited", "expired", "bad")
"""What `/status` says of every peer that has asked (docs/operate/counts.md)."""


class Handoffs(Protocol):
    """How far hand-offs are (`handoffs.HandoffModule`)."""

    def wait(self, call: Any, handoff_id: str, known: int, seconds: float) -> object: ...


class _Subscriber:
    """A peer that waits for news of a hand-off: a deferred call."""

    def __init__(self, head: list[bytes], news: Inbox[tuple[_Subscriber, Any]]) -> None:
        self.head, self._news = head, news
        self.until, self.fallback = 0.0, HandoffState(UNKNOWN)

    def defer(self, seconds: float, fallback: HandoffState) -> None:
        self.until, self.fallback = time.monotonic() + seconds, fallback

    def reply(self, result: HandoffState) -> bool:
        """Any thread."""
        self._news.post((self, result))
        return True


class Owner:
    """`run` and `run_leases` are bodies of threads, `run` of the one that owns the sockets."""

    def __init__(
        self,
        storage: Storage,
        channels: Mapping[str, TransferChannel],
        about: Hello,
        members: Members,
        max_bytes: int,
        clock: Clock,
        handoffs: Handoffs | None = None,
    ) -> None:
        self._handoffs = handoffs
        self._subscribers: set[_Subscriber] = set()
        self._news: Inbox[tuple[_Subscriber, Any]] = Inbox()
        self._channels, self._about, self._members = channels, about, members
        self._leases = Leases(storage, channels, max_bytes, clock)
        self.counts = self._leases.counts
        self._faults = FaultLog(logger, clock, "service=p2p")
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = open_socket(self._context, zmq.ROUTER)
        self._zap = self._context.socket(zmq.REP)  # over inproc:// alone
        self._operations = OperationTable(OPERATIONS)
        self._waiting: list[tuple[float, list[bytes], Task]] = []
        """Questions for results that are not there yet: when they are answered, and whom."""
        self._handlers: Mapping[str, Callable[..., Any]] = {
            LOOKUP_AND_LOCK.name: self._leases.lookup_and_lock,
            UNLOCK_OBJECTS.name: self._leases.unlock_objects,
            RENEW.name: self._leases.renew,
            END.name: self._leases.end_task,
        }
        self._stopping = False
        self._runs = False
        self._over = threading.Event()
        self._wakes: Inbox[frozenset[bytes]] = Inbox()
        self.run_leases = self._leases.run

    def bind(self, endpoint: str, keys: KeyPair) -> None:
        """Raises zmq.ZMQError."""
        self._zap.linger = 0
        self._zap.bind(ZAP_ENDPOINT)
        router = self._router
        router.linger = 0
        router.curve_server = True
        router.curve_secretkey, router.curve_publickey = keys.secret, keys.public
        router.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
        router.setsockopt(zmq.ROUTER_HANDOVER, 1)
        router.setsockopt(zmq.MAXMSGSIZE, REQUEST_BYTES_MAX)
        router.setsockopt(zmq.HANDSHAKE_IVL, 5000)
        router.setsockopt(zmq.SNDHWM, 256)
        router.setsockopt(zmq.RCVHWM, 4)  # of one connection, and each may be large
        router.bind(endpoint)

    @property
    def leased_bytes(self) -> int:
        return self._leases.leased_bytes

    @property
    def leases(self) -> int:
        return self._leases.count

    def counts_by_peer(self) -> dict[str, dict[str, int]]:
        """Those of no peer are by the empty name."""
        found: dict[str, dict[str, int]] = {"": {"refused": 0}}
        for (peer, what), value in sorted(dict(self.counts).items()):
            found.setdefault(peer, dict.fromkeys(COUNTED, 0))[what] = value
        return found

    def members_left(self, keys: frozenset[bytes]) -> None:
        """Any thread: their sessions end."""
        self._wakes.post(keys)

    def stop(self) -> None:
        """Any thread."""
        self._stopping = True
        self._leases.stop()
        self._wakes.wake()

    def close(self, seconds: float) -> None:
        """After `stop`: wait for the end of `run`, if it was started."""
        if self._runs:
            self._over.wait(seconds)
        else:
            self._close()

    def _close(self) -> None:
        self._leases.end_all()
        self._router.close(0)
        self._zap.close(0)
        self._context.term()
        self._over.set()

    def run(self) -> None:
        self._runs = True
        self._serve()
        self._close()

    def _serve(self) -> None:
        poller = zmq.Poller()
        for each in (self._zap, self._router, self._leases.made, self._wakes, self._news):
            poller.register(each, zmq.POLLIN)
        next_round = 0.0
        while not self._stopping:
            now = time.monotonic()
            if now >= next_round:
                next_round = min(now + ROUND_SECONDS, self._leases.expire(now))
            waiting = (until for until, _, _ in self._waiting)
            due = min([next_round, *waiting, *(each.until for each in self._subscribers)])
            ready = dict(poller.poll(int(max(0.0, due - now) * 1000) + 1))
            if self._zap in ready:
                self._admit()
            for keys in self._wakes.drain():
                for key in keys:
                    self._leases.end_session(key)
            for task in self._leases.made.drain():
                self._leases.take(task)
            self._answer_waiting()
            self._answer_subscribers()
            if self._router in ready:
                self._take_requests()

    # --- who may speak

    def _admit(self) -> None:
        frames = self._zap.recv_multipart()
        version, number, _, _, _, mechanism, *credentials = frames if len(frames) >= 6 else [b""] * 6
        user = b""
        if mechanism == b"CURVE" and len(credentials) == 1:
            key = z85.encode(credentials[0])
            user = key if self._members.name_of(key) is not None else b""
        # 300 closes the connection without a word: a member that has registered a moment ago tries again.
        status = (b"200", b"OK") if user else (b"300", b"")
        if not user:
            self.counts["", "refused"] += 1
        self._zap.send_multipart([version, number, *status, user, b""])

    def _take_requests(self) -> None:
        until = time.monotonic() + TURN_SECONDS
        for _ in range(MESSAGES_MAX):
            if time.monotonic() > until:
                return
            try:
                messages = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            key = str(messages[-1].get("User-Id")).encode()
            frames = [message.bytes for message in messages]
            name = self._members.name_of(key)
            if name is None:
                self.counts["", "refused"] += 1
                self._leases.end_session(key)
                continue
            if len(frames) < 3:
                self.counts[name, "bad"] += 1
                continue
            try:
                self._take(key, name, frames)
            except Exception:  # noqa: BLE001 - a bug: it is answered
                self._faults.exception("a request of a peer failed")
                self._send(frames[:3], NO_RESULT)

    def _take(self, key: bytes, name: str, frames: list[bytes]) -> None:
        head, payload = frames[:3], frames[3:]
        try:
            codec = self._operations.find(head[2])
        except ProtocolError as error:
            self._leases.refuse(name, error)
            self._send(head, NO_RESULT)
            return
        try:
            arguments = codec.decode_payload(payload)
        except ProtocolError as error:
            self._leases.refuse(name, error)
            self._send(head, codec.negative)
            return
        session = self._leases.session(key)
        operation = codec.operation
        if operation is HELLO:
            self._send(head, encode_result(self._hello(key, name, *arguments)))
        elif session is None:
            self._leases.refuse(name, "it has not said hello")
            self._send(head, codec.negative)
        elif operation is QUERY_LOOKUP_RESULTS:
            self._query(head, session, *arguments)
        elif operation is HANDOFF_SUBSCRIBE:
            self._subscribe(head, name, *arguments)
        else:
            self._send(head, encode_result(self._handlers[operation.name](session, *arguments)))

    # --- operations

    def _hello(self, key: bytes, name: str, says: Hello) -> Hello:
        about = self._about
        for field in ("version", "chunk_tokens", "chain", "test_vector"):
            theirs, ours = getattr(says, field), getattr(about, field)
            if theirs != ours:
                reason = f"{field} is {str(theirs)[:64]} there and {ours} here"
                self._leases.refuse(name, reason)
                return msgspec.structs.replace(about, refused=reason)
        session = self._leases.begin_session(key, name, says)
        session.channels = {name: channel.describe() for name, channel in self._channels.items()}
        return msgspec.structs.replace(about, secret=session.secret, channels=session.channels)

    def _query(self, head: list[bytes], session: Session, number: int) -> None:
        task = session.tasks.get(number)
        if task is None or task.asked:
            self._leases.refuse(session.name, f"task {number} is not there, or was answered")
            self._send(head, encode_result([]))
        elif not task.is_made:
            self._waiting.append((time.monotonic() + WAIT_SECONDS, head, task))
        else:
            self._give(head, task)

    def _give(self, head: list[bytes], task: Task) -> None:
        self._send(head, encode_result(self._leases.give(task)))

    def _answer_waiting(self) -> None:
        now, left = time.monotonic(), []
        for until, head, task in self._waiting:
            if task.asked:
                self._send(head, encode_result([]))
            elif task.is_made:
                self._give(head, task)
            elif now >= until:
                self._send(head, encode_result(None))
            else:
                left.append((until, head, task))
        self._waiting = left

    def _subscribe(self, head: list[bytes], name: str, handoff_id: str, known: int, seconds: float) -> None:
        subscriber = _Subscriber(head, self._news)
        said: object = HandoffState(UNKNOWN)
        try:
            if self._handoffs is not None:
                said = self._handoffs.wait(subscriber, handoff_id, known, seconds)
        except ProtocolError as error:
            self._leases.refuse(name, error)
        if said is DEFERRED:
            self._subscribers.add(subscriber)
        else:
            self._send(head, encode_result(said))

    def _answer_subscribers(self) -> None:
        for subscriber, said in self._news.drain():
            if subscriber in self._subscribers:
                self._subscribers.discard(subscriber)
                self._send(subscriber.head, encode_result(said))
        now = time.monotonic()
        for subscriber in [each for each in self._subscribers if each.until <= now]:
            self._subscribers.discard(subscriber)
            self._send(subscriber.head, encode_result(subscriber.fallback))

    def _send(self, head: list[bytes], result: tuple[Frame, ...]) -> None:
        """To a peer that has gone, or reads nothing: to nowhere."""
        try:
            self._router.send_multipart([*head, *result], zmq.NOBLOCK)
        except zmq.Again:
            pass
