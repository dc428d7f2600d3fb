"""What peers send each other: requests and answers at the port of peers, descriptions of channels, and the frames of `tcp`."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, cast

import msgspec

from lmcache_client.codec import Frame, OperationCodec
from lmcache_client.errors import LMCacheError, ProtocolError
from lmcache_core import LeasedObject, ObjectKey, Storage, SystemClock
from lmcache_devkit.borrowed_memory import BorrowedMemory
from lmcache_p2p.coordinators import Members
from lmcache_p2p.identity import PeerUrl
from lmcache_p2p.messages import HELLO, LOOKUP_AND_LOCK, OPERATIONS, QUERY_LOOKUP_RESULTS, PeerKey
from lmcache_p2p.owner import Owner
from lmcache_p2p.shm_channel import Description as Segment
from lmcache_p2p.shm_channel import ShmChannel
from lmcache_p2p.tcp_channel import Description, TcpChannel
from lmcache_p2p.tcp_server import MAGIC
from plugins.p2p.tests.rig import ABOUT, FakeLease, key_of, shm, tcp

REGION_BYTES: Final = 1 << 20
LEASED: Final = (65_536, 64)
SECRET: Final = bytes(range(16))
_CODECS: Final = tuple(OperationCodec(operation) for operation in OPERATIONS)


def pieces(data: bytes) -> list[bytes]:
    """Several inputs in one: each has its length in front, two bytes; the last one takes what is left."""
    found = []
    while len(data) > 2:
        size = int.from_bytes(data[:2], "big")
        found.append(data[2 : 2 + size])
        data = data[2 + size :]
    return found


def joined(parts: Sequence[bytes]) -> bytes:
    """What `pieces` takes apart."""
    return b"".join(len(part).to_bytes(2, "big") + part for part in parts)


class _Storage:
    """Has each object whose number is even."""

    def __init__(self) -> None:
        self.leases: list[FakeLease] = []

    def lease_reads(self, borrower: str, keys: Sequence[ObjectKey], seconds: float, max_bytes: int) -> FakeLease:
        assert 1.0 <= seconds <= 60.0
        found = [None if key.chunk_hash[0] % 2 else LeasedObject(key.chunk_hash[0] * 4096, 8192) for key in keys]
        self.leases.append(FakeLease(found))
        return self.leases[-1]


class _AnsweredOwner(Owner):
    """An owner without threads or a port."""

    def __init__(self) -> None:
        self.storage, self.answers = _Storage(), list[tuple[list[bytes], tuple[Frame, ...]]]()
        super().__init__(cast(Storage, self.storage), {}, ABOUT, cast(Members, None), REGION_BYTES, SystemClock())

    def ask(self, frames: list[bytes]) -> None:
        self._take(b"k", "member", [b"identity", b"number", *frames])
        self._leases.stop()
        self._leases.run()
        for task in self._leases.made.drain():
            self._leases.take(task)
        self._answer_waiting()

    def _send(self, head: list[bytes], result: tuple[Frame, ...]) -> None:
        self.answers.append((head, result))

    def end(self) -> None:
        """Nothing is left of what a member asked for."""
        self._leases.end_session(b"k")
        self._waiting.clear()
        assert self.leases == 0
        assert all(lease.ended for lease in self.storage.leases)
        self.storage.leases.clear()
        self.answers.clear()


_OWNERS: Final[list[_AnsweredOwner]] = []
_CHANNELS: Final[list[tuple[TcpChannel, ShmChannel]]] = []


def _owner() -> _AnsweredOwner:
    if not _OWNERS:
        _OWNERS.append(_AnsweredOwner())
    return _OWNERS[0]


def _channels() -> tuple[TcpChannel, ShmChannel]:
    if not _CHANNELS:
        memory = BorrowedMemory(REGION_BYTES, shared=True)
        memory.region.view[:] = b"s" * REGION_BYTES
        memory.region.view[LEASED[0] : sum(LEASED)] = b"p" * LEASED[1]
        _CHANNELS.append((tcp(memory, "o" * 32), shm(memory, "o" * 32)))
        _CHANNELS[0][0].expose(SECRET, [LEASED])
        memory.close()
    return _CHANNELS[0]


@cache
def _greeting() -> bytes:
    return MAGIC + msgspec.msgpack.decode(_channels()[0].describe(), type=Description).ticket


def peer_requests(data: bytes) -> None:
    """Requests of one member, one after the other: each has the number of an operation in front."""
    owner = _owner()
    for piece in pieces(data):
        if piece:
            frames = pieces(piece[1:])
            known = [_CODECS[piece[0]].frame] if piece[0] < len(_CODECS) else []
            if known or frames:
                owner.ask([*known, *frames])
    for head, result in owner.answers:
        for codec in _CODECS:
            if head[2] == codec.frame:
                codec.decode_result([bytes(frame) for frame in result])
    owner.end()


def peer_answers(data: bytes) -> None:
    """An answer to each operation, what a coordinator says of members, and descriptions of channels."""
    if not data:
        return
    try:
        _CODECS[data[0] % len(_CODECS)].decode_result(pieces(data[1:]))
    except (ProtocolError, IndexError):
        pass  # what `Peer.ask` expects
    try:
        PeerUrl.read(data[1:].decode(errors="replace"))
    except ProtocolError:
        pass
    sockets, memory = _channels()
    try:
        memory.connect(data[1:]).close()
    except LMCacheError:
        pass
    try:
        peer = msgspec.msgpack.decode(data[1:], type=Description)
    except ValueError:
        peer = Description("", 0, b"")
    try:  # nowhere else than here
        sockets.connect(msgspec.msgpack.encode(msgspec.structs.replace(peer, host="127.0.0.1", port=1))).close()
    except LMCacheError:
        pass


def tcp_frames(data: bytes) -> None:
    """A connection of the channel `tcp`: the first byte says how much of it is right.  Only what is leased is answered."""
    channel, _ = _channels()
    if not data:
        return
    said = b"" if data[0] & 1 else _greeting()
    for piece in pieces(data[1:]):
        if data[0] & 2:
            said += piece
        else:
            said += SECRET + struct.pack("<I", len(piece) // 16) + piece[: len(piece) // 16 * 16]
    ours, theirs = socket.socketpair()
    heard = bytearray()

    def listen() -> None:
        with contextlib.suppress(ConnectionResetError):  # the owner has not read all of it
            while part := ours.recv(1 << 20):
                heard.extend(part)

    with ours:
        listening = threading.Thread(target=listen)
        listening.start()
        with contextlib.suppress(BrokenPipeError):
            ours.sendall(said)
            ours.shutdown(socket.SHUT_WR)
        channel._server._begin(_Tcp(fileno=theirs.detach()))
        listening.join()
    assert set(heard) <= set(b"\0\1p"), "bytes that were not leased"


class _Tcp(socket.socket):
    def setsockopt(self, *_: Any) -> None:
        """It is of another family."""


def seeds(name: str) -> list[bytes]:
    encode = msgspec.msgpack.encode
    match name:
        case "peer_requests":
            hello = bytes([OPERATIONS.index(HELLO)]) + joined([encode(ABOUT)])
            keys = [PeerKey.of(key_of(number)) for number in range(4)]
            lookup = bytes([OPERATIONS.index(LOOKUP_AND_LOCK)]) + joined([encode(keys), encode({})])
            others = [bytes([number]) + joined([encode(1)]) for number in range(len(OPERATIONS))]
            unlock = bytes([2]) + joined([encode(keys[:1])])
            return [joined([hello, lookup, others[1], unlock, others[4], others[5]]), joined([lookup, *others])]
        case "peer_answers":
            _, memory = _channels()
            said = [memory.describe(), _channels()[0].describe(), b"tcp://127.0.0.1:1#" + b"ab" * 32]
            about = msgspec.msgpack.decode(memory.describe(), type=Segment)
            said.append(encode(msgspec.structs.replace(about, inode=1)))
            answer = bytes([OPERATIONS.index(QUERY_LOOKUP_RESULTS)]) + joined([encode([{"offset": 1, "size": 2}])])
            return [*(b"\0" + each for each in said), answer, bytes([3]) + joined([encode(ABOUT)])]
        case _:
            extent = struct.pack("<QQ", *LEASED)
            whole = SECRET + struct.pack("<I", 1) + extent
            return [
                b"\0" + joined([extent, extent * 2]),
                b"\2" + joined([whole]),
                b"\3" + joined([_greeting() + whole]),
            ]
