"""What the project uses of pyzmq, over the simulated network.

Queues are shorter than real ones by `SCALE`, so that they are full after a few messages.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Self

import zmq as real

from tests.simulation.descriptors import notify
from tests.simulation.network import Connection, Frames, Network
from tests.simulation.runtime import Process, Task, the_runtime

SCALE: Final = 16
"""A high-water mark of 256 holds 256 / SCALE messages here."""
DEFAULT_MARK: Final = 1000


class Frame:
    """A received frame."""

    __slots__ = ("_data", "_descriptor", "more")

    def __init__(self, data: bytes, more: bool, descriptor: int = -1) -> None:
        self._data = data
        self.more = more
        self._descriptor = descriptor

    def __len__(self) -> int:
        return len(self._data)

    @property
    def bytes(self) -> bytes:
        return self._data

    @property
    def buffer(self) -> memoryview:
        return memoryview(self._data)

    def get(self, option: int) -> int:
        assert option == real.SRCFD
        return self._descriptor


class _Base:
    """What `zmq.Socket` inherits its `send` and `recv` from."""

    def recv(self, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        return self._recv(flags, copy)  # type: ignore[attr-defined]

    def send(self, data: Any, flags: int = 0, copy: bool = True, track: bool = False) -> None:
        self._send(data, flags)  # type: ignore[attr-defined]


class Socket(_Base):
    """A ROUTER or a DEALER; within one context the ROUTER of a ZAP handler and the PAIR of a monitor."""

    def __init__(self, network: Network, process: Process, kind: int, context: Context) -> None:
        self.network, self.process, self.kind, self.context = network, process, kind, context
        self.is_port = kind == real.ROUTER
        """A ROUTER that engines connect to."""
        self._monitor: tuple[str, int] | None = None
        self.options: dict[int, Any] = {}
        self.closed = False
        self.endpoint = ""
        self.waiters: list[Task] = []
        self.descriptor = network.runtime.new_descriptor(self)
        self.connections: dict[bytes, Connection] = {}
        self.connection: Connection | None = None
        self.outgoing: deque[Frames] = deque()
        self.incoming: deque[Frames] = deque()
        self._reading: deque[Frame] = deque()
        self._writing: list[bytes] = []
        self._to: Connection | None = None
        process.on_killed.append(self.close)

    def __class_getitem__(cls, item: object) -> type[Self]:
        return cls

    def mark(self, option: int) -> int:
        mark = int(self.options.get(option, DEFAULT_MARK))
        return max(1, mark // SCALE) if mark else 1 << 30

    # --- as pyzmq has it

    def setsockopt(self, option: int, value: Any) -> None:
        self.options[option] = value

    set = setsockopt

    def getsockopt(self, option: int) -> Any:
        if option == real.FD:
            return self.descriptor
        if option == real.EVENTS:
            return (real.POLLIN if self.readable else 0) | real.POLLOUT
        return self.options.get(option, 0)

    get = getsockopt

    def getsockopt_string(self, option: int) -> str:
        return self.endpoint

    def monitor(self, endpoint: str, events: int) -> None:
        self._monitor = (endpoint, events)

    def disable_monitor(self) -> None:
        self._monitor = None

    def tell(self, event: int, value: int) -> None:
        """Have the monitor hear of this."""
        if self._monitor is not None and self._monitor[1] & event:
            reader = self.context.inproc.get(self._monitor[0])
            if reader is not None:
                reader.take([struct.pack("=HI", event, value), self.endpoint.encode()])

    def take(self, frames: Sequence[bytes]) -> None:
        """A message from within the context."""
        if not self.closed:
            self.incoming.append(tuple(frames))
            self.news()

    def bind(self, endpoint: str) -> None:
        if endpoint.startswith("inproc:"):
            self.is_port = False
            self.context.inproc[endpoint] = self
            return
        endpoint = endpoint.replace("*", "5555")
        if endpoint in self.network.bound:
            raise real.ZMQError(real.EADDRINUSE)
        self.endpoint = endpoint
        self.network.bound[endpoint] = self

    def connect(self, endpoint: str) -> None:
        if endpoint.startswith("inproc:"):
            self.context.inproc[endpoint] = self
            return
        self.endpoint = endpoint
        self.network.connect(self)

    def close(self, linger: int | None = None) -> None:
        if self.closed:
            return
        self.closed = True
        runtime = self.network.runtime
        runtime.descriptors.pop(self.descriptor, None)
        self.context.closed(self)
        if self.is_port:
            self.network.bound.pop(self.endpoint, None)
            for connection in list(self.connections.values()):
                self._linger(connection)
                connection.cut()
        elif self.connection is not None:
            self.connection.cut()

    def _linger(self, connection: Connection) -> None:
        """What was answered is still sent, to those that read."""
        if not self.process.dead and not connection.client.frozen:
            room = max(0, connection.dealer.mark(real.RCVHWM) - len(connection.dealer.incoming))
            kept = list(connection.dealer.incoming) + list(connection.to_dealer)[:room]
            connection.to_dealer.clear()
            dealer = connection.dealer
            self.network.runtime.at(self.network.runtime.now, lambda: dealer.take_late(kept))

    def take_late(self, messages: Sequence[Frames]) -> None:
        if not self.closed and messages:
            self.incoming.extend(messages)
            self.news()

    def send_multipart(self, frames: Sequence[bytes], flags: int = 0, copy: bool = True, track: bool = False) -> None:
        for frame in frames[:-1]:
            self._send(frame, flags | real.SNDMORE)
        self._send(frames[-1], flags & ~real.SNDMORE)

    def recv_multipart(self, flags: int = 0, copy: bool = True, track: bool = False) -> list[bytes]:
        frames = [self._recv(flags, copy=False)]
        while frames[-1].more:
            frames.append(self._recv(0, copy=False))
        return [frame.bytes for frame in frames]

    # --- inside

    @property
    def readable(self) -> bool:
        if self._reading:
            return True
        if not self.is_port:
            return bool(self.incoming)
        return any(connection.at_router for connection in self.connections.values())

    def news(self) -> None:
        notify(self)

    def lost(self, connection: Connection) -> None:
        """Of a DEALER: its connection was cut."""
        self.connection = None
        runtime = self.network.runtime
        runtime.at(runtime.now + 0.1 + runtime.random.random() * 0.4, self.network.connect, self)

    def _recv(self, flags: int, copy: bool) -> Any:
        if not self._reading:
            self._open_message()
        frame = self._reading.popleft()
        return frame.bytes if copy else frame

    def _open_message(self) -> None:
        descriptor = -1
        if self.context.terminated:
            raise real.ContextTerminated()
        if not self.is_port:
            if not self.incoming:
                raise real.Again()
            frames: Sequence[bytes] = self.incoming.popleft()
            if self.connection is not None:
                self.connection.read_at = self.network.runtime.now
                self.connection.pump()
        else:
            waiting = [connection for connection in self.connections.values() if connection.at_router]
            if not waiting:
                raise real.Again()
            connection = waiting[int(self.network.runtime.random.random() * len(waiting))]
            message = connection.at_router.popleft()
            connection.pump()
            if len(message) >= 2:
                if not connection.owed:
                    connection.read_at = self.network.runtime.now
                connection.owed[message[0]] = self.network.runtime.now
            frames, descriptor = (connection.routing_id, *message), connection.descriptor
        self._reading.extend(Frame(frame, at + 1 < len(frames), descriptor) for at, frame in enumerate(frames))

    def _send(self, data: Any, flags: int) -> None:
        if self.closed:
            raise real.ZMQError(real.ENOTSOCK)
        frame = bytes(data)
        if not self._writing and self.is_port and self._to is None:
            self._to = self._route(frame)
            return
        if not self._writing and self.kind == real.DEALER and len(self.outgoing) >= self.mark(real.SNDHWM):
            raise real.Again()
        self._writing.append(frame)
        if flags & real.SNDMORE:
            return
        message, self._writing = tuple(self._writing), []
        if self.kind == real.DEALER:
            self.outgoing.append(message)
            if self.connection is not None:
                self.connection.pump()
            return
        if not self.is_port:
            self.network.admission(message)
            return
        connection, self._to = self._to, None
        assert connection is not None
        if connection.alive:
            connection.owed.pop(message[0], None)
            connection.to_dealer.append(message)
            connection.pump()

    def _route(self, routing_id: bytes) -> Connection:
        connection = self.connections.get(routing_id)
        if connection is None:
            raise real.ZMQError(real.EHOSTUNREACH)
        if len(connection.to_dealer) >= self.mark(real.SNDHWM):
            raise real.Again()
        return connection


class Context:
    def __init__(self, *arguments: Any) -> None:
        self._network = the_zmq().network
        self._sockets: list[Socket] = []
        self._ending: list[Task] = []
        self.inproc: dict[str, Socket] = {}
        self.terminated = False

    def __class_getitem__(cls, item: object) -> type[Self]:
        return cls

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.term()

    def socket(self, kind: int, **options: Any) -> Socket:
        task = the_runtime().current
        assert task is not None, "sockets are made by threads of a process"
        socket = Socket(self._network, task.process, kind, self)
        self._sockets.append(socket)
        return socket

    def term(self) -> None:
        """Waits until all sockets are closed; waiters for one are notified."""
        self.terminated = True
        for socket in self._sockets:
            socket.news()
        while not all(socket.closed for socket in self._sockets):
            the_runtime().block(self._ending, None)

    def closed(self, socket: Socket) -> None:
        if self.terminated:
            for task in self._ending:
                the_runtime().wake(task)
            self._ending.clear()


class Poller:
    def __init__(self) -> None:
        self._sockets: list[Socket] = []

    def register(self, socket: Socket, flags: int = real.POLLIN) -> None:
        self._sockets.append(socket)

    def poll(self, timeout: float | None = None) -> list[tuple[Socket, int]]:
        sources: list[Any] = [_Terminable(socket) for socket in self._sockets]
        found = the_runtime().poll(sources, None if timeout is None or timeout < 0 else timeout / 1000)
        if any(socket.context.terminated for socket in self._sockets):
            raise real.ContextTerminated()
        return [(source.socket, real.POLLIN) for source in found]


class _Terminable:
    """A socket that is also readable when its context ends."""

    def __init__(self, socket: Socket) -> None:
        self.socket = socket

    @property
    def readable(self) -> bool:
        return self.socket.readable or self.socket.context.terminated

    @property
    def waiters(self) -> list[Task]:
        return self.socket.waiters


_zmq: list[ZMQ] = []


def the_zmq() -> ZMQ:
    return _zmq[-1]


class ZMQ:
    """Replaces the module `zmq`."""

    Context = Context
    Poller = Poller
    Socket = Socket

    def __init__(self, network: Network) -> None:
        self.network = network
        _zmq[:] = [self]

    def __getattr__(self, name: str) -> Any:
        return getattr(real, name)

    @staticmethod
    def zmq_poll(polled: Sequence[tuple[Any, int]], timeout: float = -1) -> list[tuple[Any, int]]:
        runtime = the_runtime()
        by_source = {}
        for source, _ in polled:
            by_source[id(source if isinstance(source, Socket) else runtime.descriptors[source])] = source
        sources = [source if isinstance(source, Socket) else runtime.descriptors[source] for source, _ in polled]
        found = runtime.poll(sources, None if timeout is None or timeout < 0 else timeout / 1000)
        return [(by_source[id(source)], real.POLLIN) for source in found]
