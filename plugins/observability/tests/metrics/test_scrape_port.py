"""The port for scraping: whatever clients do, the next scrape is answered."""

from __future__ import annotations

import gzip
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from lmcache_observability.metrics import scrape_port
from lmcache_observability.metrics.prometheus_text import Exposition
from lmcache_observability.metrics.scrape_port import CONNECTIONS_MAX, HEAD_BYTES_MAX, ScrapePort

BODY = b"# nothing\n" * 1000


@pytest.fixture
def port() -> Iterator[ScrapePort]:
    opened = ScrapePort("127.0.0.1", 0, lambda accept: Exposition(f"text/{accept or 'plain'}", BODY))
    opened.start()
    yield opened
    opened.close()


def ask(port: ScrapePort, data: bytes, timeout: float = 10.0) -> bytes:
    with socket.create_connection(("127.0.0.1", port.port), timeout=timeout) as client:
        client.sendall(data)
        return received(client)


def received(client: socket.socket) -> bytes:
    answer = b""
    try:
        while more := client.recv(65536):
            answer += more
    except ConnectionResetError:
        pass  # closed with a part of the request unread
    return answer


def head(answer: bytes) -> str:
    return answer.partition(b"\r\n\r\n")[0].decode()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_scrape_is_answered(port: ScrapePort) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{port.port}/metrics", timeout=10) as answer:
        assert answer.read() == BODY
        assert answer.headers["Content-Type"] == "text/*/*" or answer.headers["Content-Type"] == "text/plain"


def test_accept_reaches_the_exposition(port: ScrapePort) -> None:
    answer = ask(port, b"GET /metrics?x=1 HTTP/1.1\r\nHost: localhost\r\nACCEPT: html\r\n\r\n")
    assert "Content-Type: text/html" in head(answer)


@pytest.mark.parametrize(
    ("accept", "is_packed"), [("gzip", True), ("br, GZIP;q=0.5", True), ("gzip;q=0", False), ("", False)]
)
def test_the_answer_is_packed_for_who_can_read_that(port: ScrapePort, accept: str, is_packed: bool) -> None:
    answer = ask(port, f"GET /metrics HTTP/1.1\r\nAccept-Encoding: {accept}\r\n\r\n".encode())
    body = answer.partition(b"\r\n\r\n")[2]
    assert (gzip.decompress(body) if is_packed else body) == BODY
    assert ("Content-Encoding: gzip" in head(answer)) == is_packed


@pytest.mark.parametrize(
    ("host", "status"),
    [
        (b"127.0.0.1:9090", "200"),
        (b"127.8.9.1", "200"),
        (b"[::1]:9090", "200"),
        (b"localhost:1", "200"),
        (b"LOCALHOST.", "200"),
        (b"a.localhost", "200"),
        (b"pages.example:9090", "421"),
        (b"localhost.pages.example", "421"),
        (b"127.0.0.1.pages.example", "421"),
        (b"10.0.0.1", "421"),
        (b"[", "421"),
        (b"", "421"),
    ],
)
def test_only_names_of_this_machine_are_answered(port: ScrapePort, host: bytes, status: str) -> None:
    answer = ask(port, b"GET /metrics HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
    assert head(answer).startswith(f"HTTP/1.1 {status} ")
    assert answer.endswith(BODY) == (status == "200")


def test_where_others_reach_it_every_name_is_answered() -> None:
    port = ScrapePort("0.0.0.0", 0, lambda accept: Exposition("text/plain", BODY))
    port.start()
    try:
        answer = ask(port, b"GET /metrics HTTP/1.1\r\nHost: node-1.cluster:9090\r\n\r\n")
        assert head(answer).startswith("HTTP/1.1 200 ")
    finally:
        port.close()


def test_head_has_no_body(port: ScrapePort) -> None:
    answer = ask(port, b"HEAD /metrics HTTP/1.0\r\n\r\n")
    assert f"Content-Length: {len(BODY)}" in head(answer)
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "404"),
        (b"GET /metrics/../status HTTP/1.1\r\n\r\n", "404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
    ],
)
def test_nothing_else_is_there(port: ScrapePort, request_: bytes, status: str) -> None:
    assert head(ask(port, request_)).startswith(f"HTTP/1.1 {status} ")


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /metrics HTTP/2\r\n\r\n",
        b"\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * HEAD_BYTES_MAX,
        b"G" * (2 * HEAD_BYTES_MAX),
    ],
)
def test_what_is_not_a_request_gets_no_answer(port: ScrapePort, garbage: bytes) -> None:
    assert ask(port, garbage) == b""
    test_a_scrape_is_answered(port)


def test_clients_that_send_nothing_are_left_in_time(port: ScrapePort, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape_port, "HEAD_SECONDS", 0.3)
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port.port), timeout=10))
            for _ in range(CONNECTIONS_MAX)
        ]
        for client in silent:
            client.sendall(b"GET /met")
        wait_for(lambda: port._room._value == 0)
        assert ask(port, b"GET /metrics HTTP/1.1\r\n\r\n") == b"", "no more at once than these"
        assert [received(client) for client in silent] == [b""] * CONNECTIONS_MAX
    wait_for(lambda: port._room._value == CONNECTIONS_MAX)
    test_a_scrape_is_answered(port)


def test_a_client_that_does_not_read_is_left_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape_port, "ANSWER_SECONDS", 0.3)
    port = ScrapePort("127.0.0.1", 0, lambda accept: Exposition("text/plain", b"x" * 50_000_000))
    port.start()
    with socket.create_connection(("127.0.0.1", port.port)) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        wait_for(lambda: port._room._value < CONNECTIONS_MAX)
        wait_for(lambda: port._room._value == CONNECTIONS_MAX)
    port.close()


def test_a_scrape_that_fails_is_not_the_last(caplog: pytest.LogCaptureFixture) -> None:
    failures = [True]

    def expose(accept: str) -> Exposition:
        if failures:
            failures.pop()
            raise RuntimeError("injected")
        return Exposition("text/plain", BODY)

    port = ScrapePort("127.0.0.1", 0, expose)
    port.start()
    assert ask(port, b"GET /metrics HTTP/1.1\r\n\r\n") == b""
    wait_for(lambda: "a scrape failed" in caplog.text)
    test_a_scrape_is_answered(port)
    port.close()


def test_where_no_thread_can_be_started_the_next_scrape_is_answered(
    port: ScrapePort, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fails)
        for _ in range(CONNECTIONS_MAX + 1):
            assert ask(port, b"GET /metrics HTTP/1.1\r\n\r\n") == b""
    assert ask(port, b"GET /metrics HTTP/1.1\r\n\r\n").endswith(BODY)


def test_closing_ends_its_thread_and_frees_the_port() -> None:
    port = ScrapePort("127.0.0.1", 0, lambda accept: Exposition("text/plain", BODY))
    number = port.port
    port.start()
    port.close()
    assert not any(thread.name == "metrics-scrapes" for thread in threading.enumerate())
    again = ScrapePort("127.0.0.1", number, lambda accept: Exposition("text/plain", BODY))
    again.close()
