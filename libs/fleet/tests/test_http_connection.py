"""How long a request takes at most, whatever the other side does."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from lmcache_fleet.http_connection import HttpConnection, UnreachableError

SECONDS = 0.4
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"


@pytest.fixture
def server() -> Iterator[Callable[[bytes, bytes], str]]:
    """A server at the URL: it sends the beginning at once, and the rest, over and over, byte by byte."""
    listening = socket.create_server(("127.0.0.1", 0))
    stopping = threading.Event()
    threads = []

    def answer(begins: bytes, rest: bytes) -> None:
        while not stopping.is_set():
            try:
                connected, _ = listening.accept()
            except OSError:
                return
            with connected:
                try:
                    connected.sendall(begins)
                    for at in range(10_000):
                        connected.sendall(rest[at % len(rest) :][:1])
                        if stopping.wait(0.05):
                            break
                except OSError:
                    pass

    def start(begins: bytes, rest: bytes) -> str:
        threads.append(threading.Thread(target=answer, args=(begins, rest)))
        threads[0].start()
        return f"http://127.0.0.1:{listening.getsockname()[1]}"

    yield start
    stopping.set()
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize(
    ("begins", "rest"),
    [(b"", HEAD), (b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n"), (HEAD, b"x")],
    ids=["status", "headers", "body"],
)
def test_an_answer_byte_by_byte_has_one_time_limit(
    server: Callable[[bytes, bytes], str], begins: bytes, rest: bytes
) -> None:
    connection = HttpConnection(server(begins, rest), seconds=SECONDS)
    began = time.monotonic()
    with pytest.raises(UnreachableError, match="timed out"):
        connection.ask("GET", "/")
    assert time.monotonic() - began < 4 * SECONDS
