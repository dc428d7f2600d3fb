"""Clients that send slowly, too much, or nonsense, and that do not read."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import pytest

from lmcache_admin.service import AdminService
from lmcache_http.server import HttpLimits
from plugins.admin.tests.conversation import ask, running

QUICK = HttpLimits(request_seconds=0.3, stalled_seconds=0.3, connections=8)


@pytest.fixture
def api() -> Iterator[AdminService]:
    with running(limits=QUICK) as server:
        yield server


def connect(server: AdminService) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(server.http.endpoint.rpartition(":")[2])), timeout=10)


def rest(client: socket.socket) -> bytes:
    """What comes until the server hangs up."""
    said = b""
    try:
        while data := client.recv(65536):
            said += data
    except ConnectionResetError:
        pass
    return said


def test_who_says_nothing_is_hung_up_on(api: AdminService) -> None:
    with connect(api) as client:
        assert rest(client) == b""


@pytest.mark.parametrize(
    "said", [b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"POST /cache/clear HTTP/1.1\r\nX:"]
)
def test_who_sends_headers_slowly_is_refused(api: AdminService, said: bytes) -> None:
    with connect(api) as client:
        client.sendall(said)
        answer = rest(client)
    assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\ncontent-type: application/problem+json")
    assert b"a request is sent within 0.3 seconds" in answer


def test_drops_of_headers_do_not_win_time(api: AdminService) -> None:
    with connect(api) as client:
        started = time.monotonic()
        try:
            while time.monotonic() - started < 8:
                client.sendall(b"G")
                time.sleep(0.05)
        except OSError:
            pass
        else:
            pytest.fail("the server listens for as long as a client drips")


def test_who_sends_a_body_slowly_is_hung_up_on(api: AdminService) -> None:
    with connect(api) as client:
        client.sendall(b"POST /cache/clear HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{")
        assert b"200" not in rest(client)
    assert ask(api, "/").code == 200


def test_a_body_without_a_reader_is_not_read_for_ever(api: AdminService) -> None:
    with connect(api) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{")
        assert rest(client).startswith(b"HTTP/1.1 422")


def test_a_connection_is_kept_between_requests(api: AdminService) -> None:
    connection = HTTPConnection(api.http.endpoint.removeprefix("http://"), timeout=10)
    connection.connect()
    first = connection.sock
    for _ in range(3):
        connection.request("GET", "/healthcheck")
        assert connection.getresponse().read() == b'{"status":"healthy"}'
        time.sleep(0.4)  # longer than a request may take
    assert connection.sock is first
    connection.close()


def test_who_does_not_read_is_hung_up_on() -> None:
    with running(limits=QUICK, status=lambda: {"much": "x" * (64 << 20)}) as server, connect(server) as client:
        client.sendall(b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n")
        time.sleep(1.5)
        assert len(rest(client)) < 32 << 20
        assert ask(server, "/").code == 200


@pytest.mark.parametrize(
    "said",
    [
        b"\x16\x03\x01\x00",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: a\rb\r\n\r\n",
        b"POST /cache/clear HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 20_000,
    ],
)
def test_what_is_not_a_request_is_a_problem(api: AdminService, said: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with connect(api) as client:
        client.sendall(said)
        answer = rest(client)
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 414 "))
    assert b"content-type: application/problem+json" in answer
    assert caplog.text == "", "any client of the port could fill the log"


@pytest.mark.parametrize(
    "said", [b"", b"GET / HT", b"POST /cache/clear HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{"]
)
def test_slow_clients_keep_no_probe_out(said: bytes) -> None:
    """The connection that has kept the server waiting for longest is closed for the next one."""
    with running(limits=HttpLimits(request_seconds=600, connections=8)) as server:
        held = [connect(server) for _ in range(8)]
        for client in held:
            client.sendall(said)
            time.sleep(0.02)
        assert ask(server, "/healthcheck").code == 200
        assert rest(held[0]) == b""
        for number in range(20):
            assert ask(server, "/healthcheck").code == 200, number
        for client in held:
            client.close()


def test_connections_that_are_being_answered_give_way_to_none() -> None:
    release = threading.Event()

    def status() -> dict[str, Any]:
        release.wait(10)
        return {}

    with running(limits=HttpLimits(connections=4), status=status) as server:
        held = [connect(server) for _ in range(4)]
        for client in held:
            client.sendall(b"GET /status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        time.sleep(0.2)
        with connect(server) as one_more:
            assert rest(one_more) == b""
        release.set()
        for client in held:
            assert rest(client).startswith(b"HTTP/1.1 200")
            client.close()
