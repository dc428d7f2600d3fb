"""A server whose answers a test writes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import zmq

from lmcache_client.operations import Operation

Frames = list[bytes]

ECHO = Operation("echo", None, (int,), int)
"""What `echo` answers."""


def echo(request: Frames) -> list[Frames]:
    return [request]


def silent(request: Frames) -> list[Frames]:
    return []


class ScriptedServer:
    """A ROUTER on a thread; `answer` turns one request `[identity, uid, operation, payload...]` into messages."""

    def __init__(self, endpoint: str = "tcp://127.0.0.1:*") -> None:
        self.requests: list[Frames] = []
        self.answer: Callable[[Frames], list[Frames]] = lambda request: [request[:3]]
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(endpoint)
        self.endpoint = bytes(self._socket.getsockopt(zmq.LAST_ENDPOINT)).decode().rstrip("\0")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self._socket.poll(20):
                self.requests.append(self._socket.recv_multipart())
                for message in self.answer(self.requests[-1]):
                    self._socket.send_multipart(message)
        self._socket.close()

    def wait_for(self, requests: int, seconds: float = 10) -> None:
        """Until that number has come."""
        end = time.monotonic() + seconds
        while len(self.requests) < requests:
            assert time.monotonic() < end, f"{len(self.requests)} requests came, {requests} were to come"
            time.sleep(0.002)

    def close(self) -> None:
        """The endpoint is free again when this returns."""
        self._stopping.set()
        self._thread.join(10)
        self._context.term()
