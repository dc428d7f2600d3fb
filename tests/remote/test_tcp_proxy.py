"""The proxy does to connections what its faults say, and no more: without a backend of ours in between."""

from __future__ import annotations

import gc
import socket
import socketserver
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.remote.loop_server import HOST
from tests.remote.tcp_proxy import (
    CutAfter,
    Delay,
    Fault,
    Flip,
    Nothing,
    Refuse,
    ResetAfter,
    Silence,
    TcpProxy,
    Throttle,
    Way,
    _flipped,
)

MESSAGE: Final = bytes(range(256)) * 800
ANSWERS: Final = frozenset({Way.ANSWERS})
REQUESTS: Final = frozenset({Way.REQUESTS})


class _Echo(socketserver.BaseRequestHandler):
    """Says what it hears."""

    def handle(self) -> None:
        try:
            while data := self.request.recv(64 << 10):
                self.request.sendall(data)
        except OSError:
            pass  # reset by the proxy


class _EchoServer(socketserver.ThreadingTCPServer):
    daemon_threads = True


@pytest.fixture
def proxy() -> Iterator[TcpProxy]:
    with _EchoServer((HOST, 0), _Echo) as backend:
        serving = threading.Thread(target=partial(backend.serve_forever, poll_interval=0.02))
        serving.start()
        try:
            with TcpProxy(backend.server_address[1]) as proxy:
                yield proxy
        finally:
            backend.shutdown()
            serving.join()


def connected(proxy: TcpProxy) -> socket.socket:
    return socket.create_connection((HOST, proxy.port), timeout=10.0)


def assert_held(client: socket.socket) -> None:
    """Nothing comes for a while, and no end."""
    before = client.gettimeout()
    client.settimeout(0.2)
    with pytest.raises(TimeoutError):
        client.recv(1)
    client.settimeout(before)


def received(client: socket.socket, count: int) -> bytes:
    """Up to `count` bytes; fewer when the peer ended in an orderly way."""
    heard = bytearray()
    while len(heard) < count and (data := client.recv(count - len(heard))):
        heard += data
    return bytes(heard)


def echoed(proxy: TcpProxy, message: bytes = MESSAGE) -> bytes:
    with connected(proxy) as client, ThreadPoolExecutor(1) as pool:
        sending = pool.submit(client.sendall, message)
        heard = received(client, len(message))
        sending.result()
        return heard


def test_everything_passes(proxy: TcpProxy) -> None:
    assert echoed(proxy) == MESSAGE
    assert proxy.connected == 1
    assert proxy.passed(Way.REQUESTS) == proxy.passed(Way.ANSWERS) == len(MESSAGE)


def test_connections_that_were_not_served_yet_are_reset_when_the_proxy_ends() -> None:
    """A writer that nothing has closed is an error of whatever test the collector of garbage comes in."""
    with socket.socket() as backend:
        backend.bind((HOST, 0))
        backend.listen()
        for _ in range(20):
            with ExitStack() as stack:
                with TcpProxy(backend.getsockname()[1]) as proxy:
                    clients = [stack.enter_context(connected(proxy)) for _ in range(10)]
                for client in clients:
                    with pytest.raises(ConnectionResetError):
                        client.recv(1)
    gc.collect()


def test_an_end_of_one_side_leaves_the_other(proxy: TcpProxy) -> None:
    """A client that has said all may still be answered."""
    with connected(proxy) as client:
        client.sendall(b"last words")
        client.shutdown(socket.SHUT_WR)
        assert received(client, 100) == b"last words"


def test_refused_and_back_on_the_same_port(proxy: TcpProxy) -> None:
    with connected(proxy) as client:
        client.sendall(b"a")
        assert received(client, 1) == b"a"
        proxy.switch(Refuse())
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    for _ in range(3):
        with pytest.raises(ConnectionRefusedError):
            connected(proxy)
    proxy.switch(Nothing())
    assert echoed(proxy) == MESSAGE


@pytest.mark.parametrize("ways", [ANSWERS, REQUESTS])
def test_silence_holds_what_passes_later(proxy: TcpProxy, ways: frozenset[Way]) -> None:
    with connected(proxy) as client:
        client.sendall(b"a")
        assert received(client, 1) == b"a"
        proxy.switch(Silence(ways))
        client.sendall(b"held")
        assert_held(client)
        proxy.switch(Nothing())
        assert received(client, 4) == b"held"


@pytest.mark.parametrize("fault", [Silence(), Delay(seconds=3600)])
def test_what_a_new_connection_says_is_held_until_the_fault_is_over(proxy: TcpProxy, fault: Fault) -> None:
    proxy.switch(fault)
    with connected(proxy) as client:
        client.sendall(b"held")
        assert_held(client)
        proxy.switch(Nothing())
        assert received(client, 4) == b"held"


@pytest.mark.parametrize("fault", [Delay(seconds=0.1), Throttle(bytes_per_second=1_000_000)])
def test_slow_is_not_wrong(proxy: TcpProxy, fault: Fault) -> None:
    proxy.switch(fault)
    assert echoed(proxy) == MESSAGE


def test_a_throttle_lets_little_pass(proxy: TcpProxy) -> None:
    proxy.switch(Throttle(ANSWERS, bytes_per_second=100))
    with connected(proxy) as client:
        client.sendall(MESSAGE[:1000])
        proxy.wait_passed(Way.ANSWERS, 1)
        assert proxy.passed(Way.ANSWERS) < 500
        proxy.switch(Nothing())
        assert received(client, 1000) == MESSAGE[:1000]


@pytest.mark.parametrize(
    "held", [Throttle(REQUESTS, bytes_per_second=1), Delay(REQUESTS, seconds=3600), Silence(REQUESTS)]
)
def test_what_was_held_is_lost_with_the_line(proxy: TcpProxy, held: Fault) -> None:
    """As a kernel's buffers are when the machine dies."""
    proxy.switch(held)
    with connected(proxy) as client:
        client.sendall(MESSAGE[:1000])
        assert_held(client)
        proxy.switch(Refuse())
    assert proxy.passed(Way.REQUESTS) == 0


@pytest.mark.parametrize("ways", [ANSWERS, REQUESTS])
@pytest.mark.parametrize("limit", [0, 1, 100_000])
def test_reset_in_the_middle(proxy: TcpProxy, ways: frozenset[Way], limit: int) -> None:
    proxy.switch(ResetAfter(ways, passed_bytes=limit))
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        echoed(proxy)
    (way,) = ways
    assert proxy.passed(way) == limit
    proxy.switch(Nothing())
    assert echoed(proxy) == MESSAGE


@pytest.mark.parametrize("limit", [0, 1, 1_000])
def test_cut_in_the_middle(proxy: TcpProxy, limit: int) -> None:
    proxy.switch(CutAfter(ANSWERS, passed_bytes=limit))
    with connected(proxy) as client:
        client.sendall(MESSAGE[:2000])
        assert received(client, 2000) == MESSAGE[:limit]
        assert client.recv(1) == b""


def test_bytes_are_counted_from_when_the_fault_began(proxy: TcpProxy) -> None:
    with connected(proxy) as client:
        client.sendall(MESSAGE[:500])
        assert received(client, 500) == MESSAGE[:500]
        proxy.switch(CutAfter(ANSWERS, passed_bytes=10))
        client.sendall(MESSAGE[:500])
        assert received(client, 500) == MESSAGE[:10]


def test_a_fault_of_one_direction_leaves_the_other(proxy: TcpProxy) -> None:
    proxy.switch(Flip(REQUESTS, every_bytes=1000))
    heard = echoed(proxy)
    wrong = [place for place, (mine, theirs) in enumerate(zip(heard, MESSAGE, strict=True)) if mine != theirs]
    assert wrong == list(range(1000, len(MESSAGE), 1000))


@given(st.binary(min_size=1, max_size=200), st.integers(1, 50), st.data())
def test_flips_do_not_depend_on_how_the_stream_is_cut(stream: bytes, every: int, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(stream)))
    whole = _flipped(stream, 0, every)
    assert _flipped(stream[:cut], 0, every) + _flipped(stream[cut:], cut, every) == whole
    assert sum(a != b for a, b in zip(stream, whole, strict=True)) == (len(stream) - 1) // every
