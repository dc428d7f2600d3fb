"""A whole server with engines and an operator, for the tests of the cache as a resource."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from http.client import HTTPConnection
from typing import Any, NamedTuple

from lmcache_core.app.server import Server


class Answer(NamedTuple):
    code: int
    body: Any
    location: str | None


class Operator:
    """Asks the admin API over a real socket."""

    def __init__(self, endpoint: str) -> None:
        self._host = endpoint.removeprefix("http://")

    def ask(self, method: str, path: str, body: Any = None) -> Answer:
        """`body` is sent as JSON, or as it is when it is bytes."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection = HTTPConnection(self._host, timeout=30)
        try:
            connection.request(method, path, data, {"Content-Type": "application/json"} if data else {})
            answer = connection.getresponse()
            return Answer(answer.status, json.loads(answer.read()), answer.getheader("location"))
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        answer = self.ask("GET", path)
        assert answer.code == 200, answer
        return answer.body

    def post(self, path: str, body: Any, code: int = 200) -> Any:
        answer = self.ask("POST", path, body)
        assert answer.code == code, answer
        return answer.body

    def entries(self, query: str, page_size: int = 2) -> list[dict[str, Any]]:
        """Every page of a listing."""
        found: list[dict[str, Any]] = []
        token = ""
        while True:
            page = self.get(f"/cache/objects?{query}&page_size={page_size}{token}")
            assert len(page["entries"]) <= page_size
            found += page["entries"]
            if page["next_page_token"] is None:
                return found
            token = f"&page_token={page['next_page_token']}"


def operator_of(server: Server) -> Operator:
    """The admin API opens a moment after the engine port."""
    endpoint = server.info.http_endpoint
    assert endpoint is not None
    address = ("127.0.0.1", int(endpoint.rpartition(":")[2]))
    wait_until(lambda: _is_open(address))
    return Operator(endpoint)


def _is_open(address: tuple[str, int]) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(address) == 0


def wait_until(done: Callable[[], bool]) -> None:
    for _ in range(2000):
        if done():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come to that")


def prompt(number: int, chunks: int = 4, chunk_tokens: int = 16) -> list[int]:
    return [number * 1000 + token for token in range(chunks * chunk_tokens)]
