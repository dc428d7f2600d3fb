"""One other server, as its reader sees it: a connection, a session, a route, leases, and what has happened with it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

import zmq
import zmq.asyncio

from lmcache_client.codec import OperationCodec
from lmcache_client.errors import LMCacheError, ProtocolError
from lmcache_client.sockets import open_socket
from lmcache_core import Operation, Outcome, Route, TransferChannel
from lmcache_p2p.coordinators import Member
from lmcache_p2p.identity import KeyPair
from lmcache_p2p.messages import HELLO, OPERATIONS, Hello, PeerAddress

logger = logging.getLogger(__name__)

QUIET_SECONDS: Final = 2.0
"""After a failure the peer is not asked for so long."""
DAMAGED_MAX: Final = 3
"""Damaged objects within DAMAGED_WINDOW_SECONDS after which a peer is not asked for DAMAGED_QUIET_SECONDS."""
DAMAGED_WINDOW_SECONDS: Final = 60.0
DAMAGED_QUIET_SECONDS: Final = 60.0
MARGIN_SECONDS: Final = 0.5
"""So long before a lease ends by this server's clock, what it covers is not read any more."""
ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024
COUNTED: Final = (
    *("asked", "hit", "leased", "stale", "refused", "unanswered"),
    *("submitted", "read", "damaged", "unread", "read_bytes", "read_seconds"),
    *("failed", "late", "bad", "unasked"),
)
"""What `/status` says of every peer (docs/operate/counts.md)."""
_CODECS: Final = {operation.name: OperationCodec(operation) for operation in OPERATIONS}


class PeerError(LMCacheError):
    """The peer did not answer, or not as it should."""


class Peer:
    """Belongs to the reader's event loop."""

    def __init__(
        self,
        member: Member,
        context: zmq.asyncio.Context,
        keys: KeyPair,
        about: Hello,
        channels: Mapping[str, TransferChannel],
        hello_seconds: float,
    ) -> None:
        """`channels`: those of this server, the one to take first comes first.  `hello_seconds`: for the answer to a hello."""
        self.member = member
        self._context, self._keys, self._about, self._channels = context, keys, about, channels
        self._socket: zmq.asyncio.Socket | None = None
        self._receiving: asyncio.Task[None] | None = None
        self._numbers = itertools.count(1)
        self._answers: dict[bytes, asyncio.Future[list[bytes]]] = {}
        self._hello_seconds = hello_seconds
        self._connecting: asyncio.Task[None] | None = None
        self._connects_late = False
        """A lookup has waited in vain for what is being connected now."""
        self._is_closed = False
        self._connection = 0
        """Goes up with each that ends."""
        self._quiet_until = 0.0
        self._damaged: deque[float] = deque(maxlen=DAMAGED_MAX)
        self.session = b""
        """What lease secrets are made from; empty: no hello was answered."""
        self.boot_id = ""
        self.route: Route | None = None
        self.channel = ""
        self._untried: list[tuple[str, bytes]] = []
        """Channels that both sides have and this session has not used, with their descriptions."""
        self._has_read = False
        """By the route: an object that was what it should be."""
        self._switching = asyncio.Lock()
        self.bytes_in_flight = 0
        self.counts = defaultdict[str, float](int, dict.fromkeys(COUNTED, 0))

    @property
    def name(self) -> str:
        return self.member.instance

    @property
    def is_open(self) -> bool:
        """May it be asked now?  While it is being connected to, lookups wait until one has done so in vain."""
        return not self._is_quiet and not self._connects_late

    @property
    def _is_quiet(self) -> bool:
        return time.monotonic() < self._quiet_until

    async def connect(self, seconds: float) -> None:
        """Say hello and take a channel, unless that was done before.  Raises PeerError; also where it takes longer, and goes on
        for who asks later."""
        if self.session:
            return
        connecting = self._connecting
        if connecting is None or connecting.done():
            connecting = self._connecting = asyncio.create_task(self._hello())
            connecting.add_done_callback(self._has_connected)
        done, _ = await asyncio.wait((connecting,), timeout=seconds)
        if not done:
            raise PeerError(f"peer {self.name}: it is not connected to yet")
        connecting.result()

    def is_late(self) -> None:
        """A lookup has waited for it in vain."""
        self._connects_late = self._connecting is not None and not self._connecting.done()

    async def ask(self, operation: Operation, *payload: Any, seconds: float) -> Any:
        """The answer.  Raises PeerError, and the peer is not asked for a while."""
        if self._is_closed:
            raise PeerError(f"peer {self.name}: it has left")
        codec = _CODECS[operation.name]
        number = next(self._numbers).to_bytes(8, "little")
        socket = self._opened()
        answer: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            await socket.send_multipart([number, codec.frame, *codec.encode_payload(payload)])
            frames = await asyncio.wait_for(answer, seconds)
            if frames[0] != codec.frame:
                raise ProtocolError("an answer to another operation")
            return codec.decode_result(frames[1:])
        except TimeoutError:
            self.counts["late"] += 1
            raise self.failed(f"no answer to {operation.name} within {seconds:.3g} s") from None
        except (ProtocolError, IndexError) as error:
            self.counts["bad"] += 1
            raise self.failed(f"{operation.name}: {error}") from None
        finally:
            self._answers.pop(number, None)

    def failed(self, why: str, seconds: float = QUIET_SECONDS) -> PeerError:
        """It is not asked for this time, and connected to anew afterwards.  Returns the error to raise."""
        if not self._is_quiet:
            logger.warning("a peer is not asked for %.0f s peer=%s reason=%s", seconds, self.name, why)
        self.counts["failed"] += 1
        self._quiet_until = max(self._quiet_until, time.monotonic() + seconds)
        self.disconnect()
        return PeerError(f"peer {self.name}: {why}")

    def damaged(self) -> None:
        """What was read was not what it should be."""
        now = time.monotonic()
        self.counts["damaged"] += 1
        self._damaged.append(now)
        if len(self._damaged) == DAMAGED_MAX and now - self._damaged[0] <= DAMAGED_WINDOW_SECONDS:
            self._damaged.clear()
            self.failed(f"{DAMAGED_MAX} damaged objects within a minute", DAMAGED_QUIET_SECONDS)

    def keeps(self, route: Route, outcomes: Sequence[Outcome]) -> bool:
        """May the route be used again after a job with these outcomes?  Not where no read has worked, nor where the first job
        has brought wrong bytes alone."""
        self._has_read |= route is self.route and Outcome.DONE in outcomes
        proofs = {Outcome.DONE, Outcome.MISSING} | ({Outcome.DAMAGED, Outcome.FOREIGN} if self._has_read else set())
        return not proofs.isdisjoint(outcomes)

    async def leave(self, route: Route) -> bool:
        """Use the next channel in place of this route, for the rest of the session.  False where there is none; then the
        route stays, or the peer is not asked for a while."""
        async with self._switching:
            if route is not self.route:
                return self.route is not None
            if not self._untried:
                return False
            logger.warning("transfer channel is left: its reads fail peer=%s name=%s", self.name, self.channel)
            route.close()
            try:
                await self._take_channel(self._connection)
            except PeerError:
                return False
            return True

    def close(self) -> None:
        """For good."""
        self._is_closed = True
        self.disconnect()

    def disconnect(self) -> None:
        self._connection += 1
        self.session, self.channel = b"", ""
        if self.route is not None:
            route, self.route = self.route, None
            route.close()
        if self._receiving is not None:
            self._receiving.cancel()
            self._receiving = None
        if self._socket is not None:
            self._socket.close(0)
            self._socket = None
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(PeerError(f"peer {self.name}: it was disconnected meanwhile"))

    async def _hello(self) -> None:
        connection = self._connection
        says: Hello | None = await self.ask(HELLO, self._about, seconds=self._hello_seconds)
        if says is None or says.refused or not says.secret:
            why = "no hello" if says is None else says.refused or "no secret"
            raise self.failed(f"it refuses this server: {why}", DAMAGED_QUIET_SECONDS)
        for field in ("version", "chunk_tokens", "chain", "test_vector"):
            theirs, ours = getattr(says, field), getattr(self._about, field)
            if theirs != ours:
                raise self.failed(f"{field} is {str(theirs)[:64]} there and {ours} here", DAMAGED_QUIET_SECONDS)
        if says.instance != self.name:
            raise self.failed(f"it says it is {says.instance[:64]}", DAMAGED_QUIET_SECONDS)
        if self.boot_id and says.boot_id != self.boot_id:
            raise self.failed(f"boot_id is {says.boot_id[:64]} there and was {self.boot_id[:64]} before")
        self._untried = [(name, says.channels[name]) for name in self._channels if name in says.channels]
        await self._take_channel(connection)
        self.session, self.boot_id = says.secret, says.boot_id

    def _has_connected(self, connecting: asyncio.Task[None]) -> None:
        self._connects_late = False
        if not connecting.cancelled():
            connecting.exception()  # it is raised in `connect`, if anything waits there

    async def _take_channel(self, connection: int) -> None:
        """The first of those that are left and can be connected to.  Raises PeerError; also where this connection has ended
        meanwhile."""
        loop = asyncio.get_running_loop()
        while self._untried:
            name, description = self._untried.pop(0)
            try:
                route = await loop.run_in_executor(None, self._channels[name].connect, description)
            except LMCacheError as error:
                logger.info("transfer channel is not used peer=%s name=%s reason=%s", self.name, name, error)
                continue
            if self._connection != connection:
                route.close()
                raise PeerError(f"peer {self.name}: it was disconnected meanwhile")
            self.route, self.channel, self._has_read = route, name, False
            logger.info("connected to a peer peer=%s channel=%s", self.name, name)
            return
        raise self.failed(f"no transfer channel of {', '.join(self._channels)} works with it")

    def _opened(self) -> zmq.asyncio.Socket:
        if self._socket is None:
            socket = open_socket(self._context, zmq.DEALER)
            socket.linger = 0
            socket.curve_secretkey, socket.curve_publickey = self._keys.secret, self._keys.public
            socket.curve_serverkey = self.member.url.key
            socket.setsockopt(zmq.MAXMSGSIZE, ANSWER_BYTES_MAX)
            socket.setsockopt(zmq.RECONNECT_IVL, 50)
            socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
            socket.connect(self.member.url.endpoint)
            self._socket = socket
            self._receiving = asyncio.create_task(self._receive(socket))
        return self._socket

    async def _receive(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            frames: Sequence[bytes] = await socket.recv_multipart()
            answer = self._answers.get(frames[0]) if frames else None
            if answer is None or answer.done():
                self.counts["unasked"] += 1  # late, or twice
            else:
                answer.set_result(list(frames[1:]))


class HeldLease:
    """Of one task of one peer."""

    def __init__(self, peer: Peer, session: bytes, number: int, seconds: float) -> None:
        self.peer, self.session, self.number = peer, session, number
        self.ends_at = time.monotonic() + seconds
        self.pins = 0

    @property
    def is_live(self) -> bool:
        return self.session == self.peer.session and time.monotonic() < self.ends_at - MARGIN_SECONDS


class Pin:
    """One object that is leased for a lookup."""

    def __init__(self, lease: HeldLease, address: PeerAddress) -> None:
        self.lease, self.address = lease, address
