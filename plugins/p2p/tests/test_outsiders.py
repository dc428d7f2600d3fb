"""What those learn, and cost, who have no lease: processes without a member's key, members that have left, foreign users."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from lmcache_client.codec import OperationCodec
from lmcache_core import BorrowedBuffer, RemoteRead
from lmcache_devkit.borrowed_memory import BorrowedMemory
from lmcache_p2p import tcp_channel, tcp_server
from lmcache_p2p.identity import KeyPair
from lmcache_p2p.messages import HELLO, lease_secret
from lmcache_p2p.tcp_channel import Description, TcpChannel
from lmcache_p2p.tls import new_certificate
from plugins.p2p.tests.rig import HOST, tcp
from plugins.p2p.tests.test_owner import SIZE, Client, Rig, wait

MAGIC = b"LMCKVT02"
SECRET = bytes(range(16))
LEASED = (65_536, 8192)
HANDSHAKE_OVER = {zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL}


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# --- the port of peers


def test_a_handshake_without_a_members_key_does_not_succeed(rig: Rig) -> None:
    """So that requests of others are not even read."""
    seen: set[int] = set()
    with Client(rig, KeyPair.new()) as client, client.socket.get_monitor_socket() as monitor:
        client.socket.send_multipart([b"1", OperationCodec(HELLO).frame])
        wait(lambda: rig.owner.counts["", "refused"])
        while not seen & HANDSHAKE_OVER:
            assert monitor.poll(20_000), seen
            seen.add(recv_monitor_message(monitor)["event"])
        client.socket.disable_monitor()
    assert zmq.EVENT_HANDSHAKE_SUCCEEDED not in seen
    assert rig.owner.counts_by_peer().keys() == {""}


@pytest.mark.parametrize(
    "said", [b"", b"\xff" * 64, b"GET / HTTP/1.1\r\n\r\n", b"\xff\0\0\0\0\0\0\0\1\x7f\3\1CURVE".ljust(64, b"\0")]
)
def test_other_bytes_than_a_handshake_learn_and_leave_nothing(rig: Rig, said: bytes) -> None:
    """Beyond the greeting of ZMTP, which says that it wants CURVE."""
    port = int(rig.endpoint.rpartition(":")[2])
    before = descriptors()
    for _ in range(50):
        with socket.create_connection((HOST, port), 5) as client:
            client.settimeout(0.2)
            heard = b""
            with contextlib.suppress(OSError):
                client.sendall(said)
                while part := client.recv(4096):
                    heard += part
                    assert len(heard) <= 64 + 2, heard
    wait(lambda: descriptors() <= before)
    assert rig.storage.asked == []
    with rig.member() as member:
        assert member.hello().secret, "it goes on"


def test_silent_connections_are_closed(rig: Rig) -> None:
    """After the time that a handshake may take, 5 s."""
    port = int(rig.endpoint.rpartition(":")[2])
    clients = [socket.create_connection((HOST, port), 5) for _ in range(20)]
    for client in clients:
        client.settimeout(20)
        with contextlib.suppress(ConnectionResetError):
            while client.recv(4096):  # its greeting, and the end
                pass
        client.close()


# --- the channel tcp


@pytest.fixture
def channel() -> Iterator[TcpChannel]:
    """Its memory is full of a secret, but for what is leased."""
    memory = BorrowedMemory(1 << 20)
    memory.region.view[:] = b"s" * (1 << 20)
    memory.region.view[LEASED[0] : sum(LEASED)] = b"p" * LEASED[1]
    channel = tcp(memory, "o" * 32)
    channel.expose(SECRET, [LEASED])
    yield channel
    channel.close(1.0)


def connected(channel: TcpChannel, greeting: bytes | None = None) -> socket.socket:
    about = msgspec.msgpack.decode(channel.describe(), type=Description)
    client = socket.create_connection((HOST, about.port), 5)
    client.settimeout(5)
    client.sendall(MAGIC + about.ticket if greeting is None else greeting)
    return client


def request(secret: bytes, *extents: tuple[int, int], count: int | None = None) -> bytes:
    packed = b"".join(struct.pack("<QQ", *extent) for extent in extents)
    return secret + struct.pack("<I", len(extents) if count is None else count) + packed


def heard(client: socket.socket) -> bytes:
    """Until it is cut off."""
    said = b""
    with contextlib.suppress(ConnectionResetError):
        while part := client.recv(65_536):
            said += part
    return said


TOP = (1 << 64) - 1
OUTSIDE = [
    (0, 1),
    (LEASED[0] - 1, 1),
    (LEASED[0] - 1, LEASED[1]),
    (LEASED[0], LEASED[1] + 1),
    (sum(LEASED), 1),
    (sum(LEASED) + 1, 0),
    (LEASED[0], TOP),
    (TOP, 1),
    (TOP, LEASED[1]),
    (TOP - LEASED[0] + 1, LEASED[0]),
    (LEASED[0] + (1 << 63), 1),
    (1 << 20, 0),
]


@pytest.mark.parametrize("extent", OUTSIDE, ids=[f"{at:x}-{size:x}" for at, size in OUTSIDE])
def test_an_extent_outside_of_the_lease_closes_the_connection(channel: TcpChannel, extent: tuple[int, int]) -> None:
    """Alone and among others that are allowed."""
    for extents in ([extent], [LEASED, extent], [extent, LEASED]):
        with connected(channel) as client:
            client.sendall(request(SECRET, *extents))
            assert heard(client) == b""


def test_what_is_leased_is_all_that_is_read(channel: TcpChannel) -> None:
    with connected(channel) as client:
        client.sendall(request(SECRET, LEASED, (LEASED[0] + 1, 7)))
        client.shutdown(socket.SHUT_WR)
        assert heard(client) == b"\x01" + b"p" * (LEASED[1] + 7)


@pytest.mark.parametrize("count", [513, 1 << 20, (1 << 32) - 1])
def test_more_extents_than_a_request_may_have_close_the_connection(channel: TcpChannel, count: int) -> None:
    with connected(channel) as client:
        client.sendall(request(SECRET, count=count))
        assert heard(client) == b""


@pytest.mark.parametrize("secret", [bytes(16), bytes(15) + b"\x01", SECRET[:-1] + b"\0"])
def test_another_secret_is_answered_no(channel: TcpChannel, secret: bytes) -> None:
    with connected(channel) as client:
        client.sendall(request(secret, LEASED))
        client.shutdown(socket.SHUT_WR)
        assert heard(client) == b"\0"


@pytest.mark.parametrize("greeting", [MAGIC + b"p" * 32, b"LMCKVT01" + b"o" * 32, bytes(40)])
def test_a_greeting_for_another_start_is_not_answered(channel: TcpChannel, greeting: bytes) -> None:
    with connected(channel, greeting) as client:
        client.sendall(request(SECRET, LEASED))
        assert heard(client) == b""


def test_one_that_has_left_is_cut_off(rig: Rig) -> None:
    """Its connections are closed, and another member's are not."""
    with rig.member() as member, connected(rig.channel) as other:
        said = member.hello()
        task, _ = member.lease(0, 1)
        wanted = request(lease_secret(said.secret, task), (0, SIZE))
        ticket = msgspec.msgpack.decode(said.channels["tcp"], type=Description).ticket
        with connected(rig.channel, MAGIC + ticket) as client, connected(rig.channel, MAGIC + ticket) as idle:
            client.sendall(wanted)
            assert client.recv(1) == b"\x01"
            left = SIZE
            while left:
                left -= len(client.recv(left))
            gone = frozenset(rig.members.names)
            rig.members.names.clear()
            rig.owner.members_left(gone)
            assert heard(client) == heard(idle) == b""
            assert rig.owner.leases == 0
        with connected(rig.channel, MAGIC + ticket) as client:
            assert heard(client) == b"", "nor does it come back"
        other.sendall(request(bytes(16)))
        assert other.recv(1) == b"\0", "it is served"


@pytest.mark.parametrize("begins", [b"", MAGIC, b"\x16\x03\x01\x02\x00\x01"])
@pytest.mark.parametrize("encrypted", [False, True])
def test_one_that_says_a_little_at_a_time_is_cut_off_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, begins: bytes, encrypted: bool
) -> None:
    monkeypatch.setattr(tcp_server, "GREETING_SECONDS", 0.5)
    files = dict(zip(("tls_cert", "tls_key"), new_certificate(tmp_path), strict=True)) if encrypted else {}
    channel = tcp(BorrowedMemory(1 << 20), "o" * 32, **files)
    start = time.monotonic()
    with connected(channel, begins) as client, contextlib.suppress(ConnectionError):
        client.settimeout(0.1)
        while time.monotonic() - start < 10:
            with contextlib.suppress(TimeoutError):
                client.sendall(b"L")
                if not client.recv(1):
                    break
    assert time.monotonic() - start < 8
    channel.close(1.0)


def test_connections_that_do_not_greet_keep_no_other_out(channel: TcpChannel) -> None:
    """The oldest of them are closed."""
    with ExitStack() as stack:
        silent = [stack.enter_context(connected(channel, b"")) for _ in range(tcp_server.GREETINGS_MAX + 10)]
        assert [heard(client) for client in silent[:10]] == [b""] * 10
        with connected(channel) as client:
            client.sendall(request(SECRET, LEASED))
            client.shutdown(socket.SHUT_WR)
            assert heard(client) == b"\x01" + b"p" * LEASED[1]
        silent[-1].settimeout(0.1)
        with pytest.raises(TimeoutError):
            silent[-1].recv(1)


def test_a_process_without_threads_closes_one_connection_and_goes_on(
    channel: TcpChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none_left)
        with connected(channel) as client:
            assert heard(client) == b""
    with connected(channel) as client:
        client.sendall(request(SECRET, LEASED))
        assert client.recv(1) == b"\x01", "it listens on"


def test_connections_end_whose_other_side_has_vanished(channel: TcpChannel) -> None:
    """Both sides ask whether the other one is there."""
    reader = tcp(BorrowedMemory(1 << 20), "r" * 32)
    route = reader.connect(channel.describe())
    wait(lambda: channel._server._greeted)
    for connection in (*route._connections, *channel._server._greeted):
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
    reader.close(1.0)


def test_a_request_takes_little_of_the_owner_whatever_it_asks_for(channel: TcpChannel) -> None:
    """As many extents as it may have, of as large a lease as there is."""
    channel.expose(SECRET, [(32 * number, 16) for number in range(16_384)])
    with connected(channel) as client:
        start = time.process_time()
        client.sendall(request(SECRET, *[(32 * number, 1) for number in range(16_384 - 512, 16_384)]))
        left = 1 + 512
        while left:
            left -= len(client.recv(left))
        assert time.process_time() - start < 0.5, "it looks at every extent of the lease"


def test_nothing_is_written_once_the_reader_has_closed(channel: TcpChannel, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kernel holds of an answer is not put into L1 any more."""
    reading = threading.Event()
    right = tcp_channel._receive_into

    def late(connection: socket.socket, buffer: BorrowedBuffer) -> None:
        reading.set()
        time.sleep(0.3)
        right(connection, buffer)

    monkeypatch.setattr(tcp_channel, "_receive_into", late)
    memory = BorrowedMemory(1 << 20)
    reader = tcp(memory, "r" * 32)
    route, buffer = reader.connect(channel.describe()), memory.lend(LEASED[1])
    route.submit_read(SECRET, [RemoteRead(LEASED[0], buffer)])
    assert reading.wait(5)
    route.close()
    reader.connect(channel.describe())
    reader.close(5.0)
    buffer.view[:] = b"x" * LEASED[1]
    time.sleep(0.5)
    assert buffer.view == b"x" * LEASED[1]


def test_what_is_under_way_stops_with_its_lease(channel: TcpChannel) -> None:
    """A reader that takes its time gets no byte of what lies there afterwards."""
    whole = (0, 1 << 20)
    big = BorrowedMemory(32 << 20)
    big.region.view[:] = b"p" * (32 << 20)
    owner = tcp(big, "o" * 32)
    try:
        owner.expose(SECRET, [(0, 32 << 20)])
        with connected(owner) as client:
            client.sendall(request(SECRET, *[(part << 20, whole[1]) for part in range(32)]))
            assert client.recv(1) == b"\x01"
            time.sleep(0.2)  # the buffers of both sockets are full
            owner.hide(SECRET)
            big.region.view[:] = b"s" * (32 << 20)
            said = heard(client)
        assert b"s" not in said
        assert len(said) < 32 << 20
    finally:
        owner.close(1.0)
