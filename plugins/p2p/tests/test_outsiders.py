"""What those learn, and cost, who have no lease: processes without a member's key, members that have left, foreign users."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Iterator

import msgspec
import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from lmcache_client.codec import OperationCodec
from lmcache_devkit.borrowed_memory import BorrowedMemory
from lmcache_p2p.identity import KeyPair
from lmcache_p2p.messages import HELLO, lease_secret
from lmcache_p2p.tcp_channel import Description, TcpChannel
from plugins.p2p.tests.rig import HOST, tcp
from plugins.p2p.tests.test_owner import SIZE, Client, Rig, wait

GREETING = b"LMCKVT01" + b"o" * 32
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


def connected(channel: TcpChannel, greeting: bytes = GREETING) -> socket.socket:
    port = msgspec.msgpack.decode(channel.describe(), type=Description).port
    client = socket.create_connection((HOST, port), 5)
    client.settimeout(5)
    client.sendall(greeting)
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


@pytest.mark.parametrize("greeting", [b"LMCKVT01" + b"p" * 32, b"LMCKVT02" + b"o" * 32, bytes(40)])
def test_a_greeting_for_another_start_is_not_answered(channel: TcpChannel, greeting: bytes) -> None:
    with connected(channel, greeting) as client:
        client.sendall(request(SECRET, LEASED))
        assert heard(client) == b""


def test_one_that_has_left_reads_nothing_by_the_connection_that_it_has(rig: Rig) -> None:
    with rig.member() as member:
        session = member.hello().secret
        task, _ = member.lease(0, 1)
        wanted = request(lease_secret(session, task), (0, SIZE))
        with connected(rig.channel, b"LMCKVT01" + b"owner".ljust(32, b"0")) as client:
            client.sendall(wanted)
            assert client.recv(1) == b"\x01"
            left = SIZE
            while left:
                left -= len(client.recv(left))
            gone = frozenset(rig.members.names)
            rig.members.names.clear()
            rig.owner.members_left(gone)
            wait(lambda: rig.owner.leases == 0)
            client.sendall(wanted)
            assert client.recv(1) == b"\0"


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
