"""A running admin API, and questions to it over a real socket."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any, NamedTuple

from lmcache_admin.service import AdminService
from lmcache_core import PluginRoute
from lmcache_http.server import LIMITS, HttpLimits
from lmcache_http.tokens import Tokens
from plugins.admin.tests.stand_ins import parts


class Answer(NamedTuple):
    code: int
    kind: str
    body: Any
    headers: dict[str, str]


def ask(server: AdminService, path: str, method: str = "GET", body: Any = None, **headers: str) -> Answer:
    """`body` is sent as JSON, or as it is when it is bytes."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    connection = HTTPConnection(server.http.endpoint.removeprefix("http://"), timeout=10)
    try:
        connection.request(method, path, data, headers)
        answer = connection.getresponse()
        given = json.loads(answer.read())
        return Answer(answer.status, str(answer.getheader("content-type")), given, dict(answer.getheaders()))
    finally:
        connection.close()


def changes_of(server: AdminService, **headers: str) -> list[tuple[str, str]]:
    """(method, path) of each route of its document that is not a GET; every parameter in a path is `a`."""
    paths = ask(server, "/openapi.json", **headers).body["paths"]
    found = [(method.upper(), re.sub("{.*?}", "a", path)) for path, methods in paths.items() for method in methods]
    return [each for each in found if each[0] in ("POST", "PUT", "PATCH", "DELETE")]


@contextmanager
def running(
    token: str | None = None,
    *,
    tokens: Tokens | None = None,
    plugins: Sequence[PluginRoute] = (),
    limits: HttpLimits = LIMITS,
    plugin_seconds: float = 30.0,
    **changes: Any,
) -> Iterator[AdminService]:
    """With `token`, or `tokens`, or without any; the rest changes the ports."""
    if token is not None:
        tokens = Tokens(None, token)
    server = AdminService("127.0.0.1", 0, tokens, parts(**changes), plugins, limits, plugin_seconds)
    server.http.start()
    try:
        wait_until_open(server)
        yield server
    finally:
        server.close()
    assert server.http._thread is not None
    assert not server.http._thread.is_alive()


def wait_until_open(server: AdminService) -> None:
    address = ("127.0.0.1", int(server.http.endpoint.rpartition(":")[2]))
    for _ in range(1000):
        with socket.socket() as probe:
            if probe.connect_ex(address) == 0:
                return
        time.sleep(0.01)
    raise AssertionError("the admin API did not open")
