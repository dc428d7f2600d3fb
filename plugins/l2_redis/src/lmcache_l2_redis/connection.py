"""A connection that is logged in, and how it is made."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lmcache_l2_redis.address import Address
from lmcache_l2_redis.channel import Channel
from lmcache_l2_redis.errors import DeniedError, error_of
from lmcache_l2_redis.replies import ErrorReply, Reply, ReplyReader, command

KEEPALIVE_SECONDS: Final = 15
Resolve = Callable[..., Awaitable[Sequence[Any]]]


class Connection:
    """To one server.  One user at a time, who closes it when anything but a reply ends what he did."""

    def __init__(self, address: Address, channel: Channel) -> None:
        self.address: Final = address
        self.channel: Final = channel
        self.reader: Final = ReplyReader(channel)

    async def ask(self, *commands: bytes) -> list[Reply]:
        """The reply to each, errors among them, sent all at once."""
        await self.channel.send(*commands)
        return [await self.reader.reply() for _ in commands]

    async def ask_one(self, request: bytes) -> Reply:
        """Raises what an error reply means."""
        (reply,) = await self.ask(request)
        if isinstance(reply, ErrorReply):
            raise error_of(reply, self.address)
        return reply

    def close(self) -> None:
        self.channel.close()


@dataclass(frozen=True, slots=True)
class Login:
    """Who says what when a connection begins.  Nothing of it is shown by `repr`."""

    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    database: int = 0
    client_name: str = ""

    def commands(self) -> list[bytes]:
        """Those whose refusal ends the connection."""
        commands = []
        if self.password is not None:
            user = () if self.username is None else (self.username,)
            commands.append(command("AUTH", *user, self.password))
        if self.database:
            commands.append(command("SELECT", self.database))
        return commands


@dataclass(frozen=True, slots=True)
class Dialer:
    """Makes connections."""

    login: Login
    tls: ssl.SSLContext | None
    connect_timeout_seconds: float
    resolve: Resolve
    """`socket.getaddrinfo`, on another thread: names may take long to be found."""
    server_hostname: str | None = None
    """What the certificate is to name, where that is not the host."""

    async def connect(self, address: Address) -> Connection:
        """Logged in.  Raises ConnectionError that names the address, or what the server's refusal means."""
        try:
            async with asyncio.timeout(self.connect_timeout_seconds):
                return await self._connect(address)
        except TimeoutError:
            raise ConnectionError(
                f"{address} does not answer within {self.connect_timeout_seconds:g} s (connect_timeout_seconds)"
            ) from None
        except ssl.SSLError as error:
            raise ConnectionError(f"{address}: TLS failed ({error.reason or error}); check the tls_* fields") from None
        except OSError as error:
            raise ConnectionError(f"{address} cannot be reached ({error.strerror or error})") from None

    async def _connect(self, address: Address) -> Connection:
        channel = self._channel(address, await self._socket(address))
        try:
            await channel.handshake()
            connection = Connection(address, channel)
            await self._log_in(connection)
            return connection
        except BaseException:
            channel.close()
            raise

    def _channel(self, address: Address, sock: socket.socket) -> Channel:
        try:
            if self.tls is not None:
                name = self.server_hostname or address.host
                sock = self.tls.wrap_socket(sock, do_handshake_on_connect=False, server_hostname=name)
            return Channel(sock)
        except BaseException:
            sock.close()
            raise

    async def _log_in(self, connection: Connection) -> None:
        needed = self.login.commands()
        named = [command("CLIENT", "SETNAME", self.login.client_name)] if self.login.client_name else []
        replies = await connection.ask(*needed, *named) if needed or named else []
        for request, reply in zip(needed, replies, strict=False):  # whether the name was taken does not matter
            if isinstance(reply, ErrorReply):
                raise error_of(_without_secrets(request, reply), connection.address)

    async def _socket(self, address: Address) -> socket.socket:
        if address.port is None:
            return await _connected(socket.AF_UNIX, 0, address.host)
        fault: OSError | None = None
        for family, _, protocol, _, place in await self._found(address):
            try:
                sock = await _connected(family, protocol, place)
            except OSError as error:
                fault = error
                continue
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_SECONDS)
            return sock
        raise fault or OSError("the name has no address")

    async def _found(self, address: Address) -> Sequence[Any]:
        try:
            return socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except socket.gaierror:
            return await self.resolve(address.host, address.port, type=socket.SOCK_STREAM)


def _without_secrets(request: bytes, reply: ErrorReply) -> ErrorReply:
    """A server that does not know AUTH repeats what came with it."""
    if b"AUTH" in request and not isinstance(error_of(reply, Address("", None)), DeniedError):
        return ErrorReply(f"{reply.code} the server refuses AUTH: does it have users or a password at all?")
    return reply


async def _connected(family: int, protocol: int, place: Any) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM, protocol)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, place)
        return sock
    except BaseException:
        sock.close()
        raise
