"""The operating system's side of connections to the engine port: the Unix socket that accepts them, the socket of one
peer, and the user that owns it."""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import socket
import struct
import termios
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Final, NamedTuple, Self

from lmcache_client.errors import ConfigError, ResourceError

SCHEME: Final = "ipc://"
MODE: Final = 0o600
_BACKLOG: Final = 128


class UnixListener:
    """Owns the file until `close`, and gives its descriptor away once."""

    def __init__(self, endpoint: str) -> None:
        """Make the file, with its mode.  One that a dead server left is replaced.  Raises ResourceError."""
        self.path = Path(endpoint.removeprefix(SCHEME))
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.fchmod(listener.fileno(), MODE)  # the file gets the mode of the socket, from its first moment
            self._remove_stale()
            listener.bind(str(self.path))
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            raise ResourceError(
                f"--host {endpoint} cannot be opened for engines: {error.strerror or error}; its folder must be there and "
                "writable, and no other server may use it"
            ) from None
        self.descriptor = listener.detach()
        """A listening socket, which the caller owns and closes."""
        self._file = self.path.stat()

    def close(self) -> None:
        """Remove the file, unless another one is there by now."""
        with suppress(OSError):
            if os.path.samestat(self.path.stat(), self._file):
                self.path.unlink()

    def _remove_stale(self) -> None:
        if not self.path.is_socket():
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
            try:
                probe.connect(str(self.path))
            except ConnectionRefusedError:  # nothing listens any more
                self.path.unlink()


_TCP_INFO_BYTES: Final = 256
_BYTES_ACKED: Final = struct.Struct("=120xQ")
"""Where `struct tcp_info` has the bytes that the peer has acknowledged (Linux 4.1)."""


class PeerSocket(NamedTuple):
    """Names a socket by its descriptor in this process and its inode, so that a descriptor that was closed and given to another
    connection has another name."""

    descriptor: int
    inode: int

    @classmethod
    def of(cls, descriptor: int) -> Self | None:
        """The socket that has this descriptor now, None where there is none."""
        try:
            return cls(descriptor, os.fstat(descriptor).st_ino)
        except OSError:
            return None

    @property
    def is_open(self) -> bool:
        return PeerSocket.of(self.descriptor) == self

    @contextmanager
    def borrow(self) -> Iterator[socket.socket | None]:
        """The socket itself, None where it is closed.  libzmq may close it meanwhile; it is the same socket nevertheless."""
        try:
            borrowed = socket.socket(fileno=os.dup(self.descriptor))
        except OSError:
            yield None
            return
        with borrowed:
            yield borrowed if os.fstat(borrowed.fileno()).st_ino == self.inode else None

    def hang_up(self) -> bool:
        """End the connection in both directions; libzmq notices and closes its end.  False where it is closed already.

        Needs no free descriptor.  Where there is none, libzmq may close the socket between the look at it and its end, and the
        next connection that has its descriptor ends instead, which connects again."""
        with self.borrow() as borrowed:
            if borrowed is not None:
                _shut_down(borrowed)
                return True
        if not self.is_open:
            return False
        try:
            original = socket.socket(fileno=self.descriptor)
        except OSError:
            return False
        _shut_down(original)
        original.detach()
        return True

    def read_mark(self) -> int | None:
        """A number that changes as the peer takes in what was sent; None where the socket is closed."""
        with self.borrow() as borrowed:
            if borrowed is None:
                return None
            try:
                if borrowed.family != socket.AF_UNIX:
                    info = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
                    return int(_BYTES_ACKED.unpack_from(info)[0])
                unread = fcntl.ioctl(borrowed.fileno(), termios.TIOCOUTQ, bytes(4))
                return int.from_bytes(unread, "little")
            except (OSError, struct.error):  # not connected any more, or an old kernel
                return None


def _shut_down(connection: socket.socket) -> None:
    with suppress(OSError):  # the peer was faster
        connection.shutdown(socket.SHUT_RDWR)


ANY: Final = "any"
_NETLINK_SOCK_DIAG: Final = 4
_NETLINK_SECONDS: Final = 1.0
_HEADER: Final = struct.Struct("=IHHII")
"""nlmsghdr: length, type, flags, sequence, port."""
_REQUEST: Final = 1
_ERROR: Final = 2
_SOCK_DIAG_BY_FAMILY: Final = 20
_DIAG_REQUEST: Final = struct.Struct("=BBxxI2s2s16s16sI8s")
"""inet_diag_req_v2: family, protocol, states, ports and addresses of both ends, interface, cookie."""
_DIAG_ANSWER: Final = struct.Struct("=BBxx2s2s16s16s4x8x12xII")
"""inet_diag_msg: family, state, ports and addresses of both ends, owner, inode."""
_ALL_STATES: Final = 0xFFFFFFFF
_ESTABLISHED: Final = 1
_GET_ROUTE: Final = 26
_ROUTE: Final = struct.Struct("=8BI")
"""rtmsg: family, bits of the destination, ..., type, flags."""
_ROUTE_TYPE: Final = 7
_ROUTE_LOCAL: Final = 2
_DESTINATION: Final = 1
_UCRED: Final = struct.Struct("=iII")
_OVERFLOW_FILE: Final = Path("/proc/sys/kernel/overflowuid")
_MAP_FILE: Final = Path("/proc/self/uid_map")
_SHORTAGES: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
_EVERY_UID: Final = ["0", "0", "4294967295"]

Address = IPv4Address | IPv6Address


class Owner(NamedTuple):
    """Of a connection: a user of this machine, a peer on another one, or neither."""

    uid: int | None = None
    is_elsewhere: bool = False
    """The peer's address is none of this machine's (of this network namespace)."""

    def __str__(self) -> str:
        if self.uid is None:
            return "a peer elsewhere" if self.is_elsewhere else "a user that is not known here"
        try:
            return f"user {pwd.getpwuid(self.uid).pw_name} ({self.uid})"
        except KeyError:
            return f"user {self.uid}"


class EngineUsers(NamedTuple):
    """Who on this machine may use the engine port; peers on others are not asked."""

    uids: Collection[int] | None
    """None: every user."""

    @classmethod
    def named(cls, names: Iterable[str]) -> Self:
        """This process's user, root, and these names and numbers; or `any` alone.  Raises ConfigError."""
        given = list(names)
        if ANY in given:
            if len(given) > 1:
                raise ConfigError(
                    f"--engine-users {','.join(given)}: 'any' admits every user; name no other user beside it"
                )
            return cls(None)
        return cls(frozenset((os.geteuid(), 0, *map(_uid_of, given))))

    def admit(self, owner: Owner) -> bool:
        return self.uids is None or owner.is_elsewhere or owner.uid in self.uids


def _uid_of(name: str) -> int:
    if name.isascii() and name.isdigit():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise ConfigError(f"--engine-users: no user is called '{name}' here; give a name, a number, or any") from None


def owner_of(connection: socket.socket) -> Owner | None:
    """The user that created the peer's socket.  None where the peer is gone.  Never blocks for long.  Raises
    OSError where this process or the machine has no descriptor or memory to ask the kernel with."""
    try:
        if connection.family == socket.AF_UNIX:
            _, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
            return _known(uid)
        peer, here = connection.getpeername(), connection.getsockname()
    except OSError:
        return None
    address, own = _plain(peer[0]), _plain(here[0])
    found = _inet_owner((address, peer[1]), (own, here[1]))
    if found is not None:
        return found
    if not _is_of_this_machine(address):
        return Owner(is_elsewhere=True)
    return None if _is_half_closed(connection) else Owner()


def _known(uid: int) -> Owner:
    """The kernel gives users that this process's user namespace does not have the overflow number, which is also that of
    `nobody`."""
    try:
        if uid == int(_OVERFLOW_FILE.read_text()) and _MAP_FILE.read_text().split() != _EVERY_UID:
            return Owner()
    except (OSError, ValueError):
        return Owner()
    return Owner(uid)


def _plain(text: str) -> Address:
    address = ip_address(text.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def _inet_owner(peer: tuple[Address, int], here: tuple[Address, int]) -> Owner | None:
    """The user of the established socket that has these ends.  A socket that is closed, but whose last bytes are still on
    their way, has no inode, and user 0."""
    family = socket.AF_INET if peer[0].version == 4 else socket.AF_INET6
    ports = tuple(port.to_bytes(2, "big") for _, port in (peer, here))
    addresses = tuple(address.packed.ljust(16, b"\0") for address, _ in (peer, here))
    request = _DIAG_REQUEST.pack(family, socket.IPPROTO_TCP, _ALL_STATES, *ports, *addresses, 0, b"\xff" * 8)
    answer = _ask_kernel(_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, request)
    if answer is None or len(answer) < _DIAG_ANSWER.size:
        return None
    _, state, *ends, uid, inode = _DIAG_ANSWER.unpack_from(answer)
    # Where no connection has these ends, the kernel answers with a listener at the peer's.
    if state != _ESTABLISHED or tuple(ends[:2]) != ports or not inode:
        return None
    return _known(uid)


def _is_of_this_machine(address: Address) -> bool:
    if address.is_loopback:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    attribute = struct.pack("=HH", 4 + len(address.packed), _DESTINATION) + address.packed
    answer = _ask_kernel(
        socket.NETLINK_ROUTE, _GET_ROUTE, _ROUTE.pack(family, address.max_prefixlen, 0, 0, 0, 0, 0, 0, 0) + attribute
    )
    return answer is not None and len(answer) > _ROUTE_TYPE and answer[_ROUTE_TYPE] == _ROUTE_LOCAL


def _is_half_closed(connection: socket.socket) -> bool:
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    return info[0] != _ESTABLISHED


def _ask_kernel(protocol: int, kind: int, payload: bytes) -> bytes | None:
    """The payload of the one answer; None where the kernel has none, or does not offer this.  Raises OSError for a shortage,
    which must not make a peer look as if it were elsewhere."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol) as netlink:
            netlink.settimeout(_NETLINK_SECONDS)
            netlink.sendto(_HEADER.pack(_HEADER.size + len(payload), kind, _REQUEST, 1, 0) + payload, (0, 0))
            answer = netlink.recv(4096)
    except OSError as error:
        if error.errno in _SHORTAGES:
            raise
        return None
    length, answered, _, _, _ = _HEADER.unpack_from(answer)
    return None if answered == _ERROR else answer[_HEADER.size : length]
