"""A simulated network: connections between the ROUTER of a server and the DEALERs of engines.

A connection has a queue on either side of each direction, as ZMQ has: a sender's, as long as its high-water mark, and a
receiver's.  Messages pass from one to the other in order and after a delay, while neither process is frozen: a stopped
process reads nothing, so what is sent to it piles up.  A connection that is cut loses what is on it; a DEALER connects again
by itself, under a new routing id.  A connection is open when the ZAP handler of the ROUTER's context has admitted it, and
monitors hear of connections as with libzmq.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import zmq as real

from lmcache_core.server.peers import Owner
from tests.simulation.runtime import Process, the_runtime

if TYPE_CHECKING:
    from tests.simulation.sockets import Socket

READS_SECONDS: Final = 2.0
"""An engine that has taken an answer in since then is one that reads."""
ZAP_ENDPOINT: Final = "inproc://zeromq.zap.01"
Frames = tuple[bytes, ...]


class Connection:
    """Between one DEALER and the ROUTER that is bound to its endpoint."""

    def __init__(self, network: Network, dealer: Socket, router: Socket) -> None:
        self.network = network
        self.dealer, self.router = dealer, router
        self.routing_id = b"\0" + network.runtime.random.randbytes(4)
        self.descriptor = network.runtime.new_descriptor(self)
        """Of the ROUTER's end."""
        self.alive = True
        self.admitted = False
        self.to_dealer: deque[Frames] = deque()
        """Answers in the ROUTER's queue."""
        self.at_router: deque[Frames] = deque()
        self.owed: dict[bytes, float] = {}
        """Requests that the ROUTER has read and not answered: uid and when."""
        self.read_at = network.runtime.now
        """When the engine last took an answer in, or could have begun to."""
        self.carried = 0
        """Answers that have reached the engine."""
        self._pumping = False
        router.tell(real.EVENT_ACCEPTED, self.descriptor)
        self._ask_admission()

    @property
    def client(self) -> Process:
        return self.dealer.process

    def _ask_admission(self) -> None:
        handler = self.router.context.inproc.get(ZAP_ENDPOINT)
        runtime = self.network.runtime
        if not self.alive:
            return
        if self.router.process.frozen:
            runtime.at(runtime.now + 0.05, self._ask_admission)
        elif handler is None:
            self.admit()
        else:
            self.network.asking[self.routing_id] = self
            domain = bytes(self.router.options.get(real.ZAP_DOMAIN, b""))
            handler.take([b"zap", b"", b"1.0", self.routing_id, domain, b"127.0.0.1", b"", b"NULL"])

    def admit(self) -> None:
        """The handshake is over."""
        self.admitted = True
        self.router.connections[self.routing_id] = self
        self.router.tell(real.EVENT_HANDSHAKE_SUCCEEDED, self.descriptor)
        self.pump()

    def pump(self) -> None:
        """There may be something to carry."""
        if self.alive and self.admitted and not self._pumping and self._can_move():
            self._pumping = True
            runtime = self.network.runtime
            delay = runtime.random.expovariate(1 / self.network.delay_seconds)
            runtime.at(runtime.now + delay, self._carry)

    def _can_move(self) -> bool:
        up = self.dealer.outgoing and len(self.at_router) < self.router.mark(real.RCVHWM)
        down = self.to_dealer and len(self.dealer.incoming) < self.dealer.mark(real.RCVHWM)
        return bool(up or down)

    def _carry(self) -> None:
        self._pumping = False
        if not self.alive:
            return
        is_server_frozen, runtime = self.router.process.frozen, self.network.runtime
        if self.client.frozen:
            runtime.at(runtime.now + 0.05, self.pump)
            return
        for _ in range(runtime.random.randint(1, 4)):
            if not is_server_frozen and self.dealer.outgoing and len(self.at_router) < self.router.mark(real.RCVHWM):
                self.at_router.append(self.dealer.outgoing.popleft())
                self.router.news()
            # The kernel goes on with what a stopped server has sent.
            if self.to_dealer and len(self.dealer.incoming) < self.dealer.mark(real.RCVHWM):
                self.dealer.incoming.append(self.to_dealer.popleft())
                self.carried += 1
                self.dealer.news()
        if is_server_frozen:
            runtime.at(runtime.now + 0.05, self.pump)
        else:
            self.pump()

    def cut(self) -> None:
        """What is on it is lost.  What the DEALER has not sent yet waits for the next connection."""
        if self.alive:
            self.alive = False
            self.router.connections.pop(self.routing_id, None)
            self.network.runtime.descriptors.pop(self.descriptor, None)
            self.router.tell(real.EVENT_DISCONNECTED, self.descriptor)
            self.dealer.incoming.clear()
            self.network.note_cut(self)
            self.dealer.lost(self)


class Network:
    """All sockets of a simulation."""

    def __init__(self, runtime: Any, delay_seconds: float = 0.0005) -> None:
        self.runtime = runtime
        self.delay_seconds = delay_seconds
        self.bound: dict[str, Socket] = {}
        self.connections: dict[Connection, None] = {}
        self.asking: dict[bytes, Connection] = {}
        """Connections that a ZAP handler has not answered."""
        self.cuts = 0
        self.cut_at: dict[Process, float] = {}
        """When each client last lost a connection."""
        self.wronged = ""
        """An engine that read its answers and whose connection was closed nevertheless."""

    def note_cut(self, connection: Connection) -> None:
        self.cuts += 1
        self.cut_at[connection.client] = self.runtime.now
        self.connections.pop(connection, None)

    def connect(self, dealer: Socket) -> None:
        """Now, or when a server is there."""
        if dealer.closed or dealer.process.dead or dealer.connection is not None:
            return
        router = self.bound.get(dealer.endpoint)
        if router is None:
            self.runtime.at(self.runtime.now + 0.1 + self.runtime.random.random() * 0.4, self.connect, dealer)
            return
        dealer.connection = Connection(self, dealer, router)
        self.connections[dealer.connection] = None

    def admission(self, frames: Sequence[bytes]) -> None:
        """What a ZAP handler says."""
        connection = self.asking.pop(frames[3], None)
        if connection is not None and connection.alive:
            if frames[4] == b"200":
                connection.admit()
            else:
                connection.cut()


class PeerSocket(NamedTuple):
    """Replaces `server.peers.PeerSocket`."""

    connection: Connection

    @classmethod
    def of(cls, descriptor: int) -> Self | None:
        connection = the_runtime().descriptors.get(descriptor)
        return cls(connection) if isinstance(connection, Connection) else None

    @property
    def is_open(self) -> bool:
        return self.connection.alive

    @contextmanager
    def borrow(self) -> Iterator[Connection | None]:
        yield self.connection if self.connection.alive else None

    def hang_up(self) -> bool:
        connection = self.connection
        was_open = connection.alive
        now = connection.network.runtime.now
        if was_open and connection.admitted and now - connection.read_at < READS_SECONDS:
            connection.network.wronged = (
                f"{connection.client} is hung up on, although it read {now - connection.read_at:.1f} s ago"
            )
        connection.cut()
        return was_open

    def read_mark(self) -> int | None:
        return self.connection.carried if self.connection.alive else None


def owner_of(connection: Connection) -> Owner | None:
    """Replaces `server.peers.owner_of`: all engines are the server's user's."""
    return Owner(os.getuid()) if connection.alive else None
