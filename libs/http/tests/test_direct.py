"""A route that is answered in front of the framework gives the very answers that the framework would give."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from litestar import Request, Response, post
from litestar.handlers import BaseRouteHandler

from lmcache_http.application import http_app
from lmcache_http.openapi import ApiAbout, Operation
from lmcache_http.problem import ProblemError
from lmcache_http.reading import path_part
from lmcache_http.server import HttpLimits, HttpServer
from lmcache_http.tokens import Scope, Tokens

BODY_BYTES_MAX = 2000
LIMITS = HttpLimits(request_seconds=1.0)
FULL = "Authorization: Bearer full\r\n"


def routes(direct: bool) -> Sequence[BaseRouteHandler]:
    kind = "direct" if direct else "layers"
    binary: dict[str, Any] = {"body_media_type": "application/msgpack", "media_type": "application/msgpack"}

    @post(
        f"/{kind}/echo",
        status_code=HTTPStatus.OK,
        request_max_body_size=BODY_BYTES_MAX,
        operation=Operation("Echo.", scopes=(Scope.MEMBER,), direct=direct, **binary),
    )
    async def echo(request: Request[Any, Any, Any]) -> Response[bytes]:
        data = await request.body()
        if data == b"problem":
            raise ProblemError(HTTPStatus.CONFLICT, "no")
        if data == b"fault":
            raise ValueError("a fault of the server's")
        return Response(data, media_type="application/msgpack")

    @post(
        f"/{kind}/named/{{name:str}}",
        status_code=HTTPStatus.OK,
        operation=Operation("A name.", direct=direct, **binary),
    )
    async def named(request: Request[Any, Any, Any]) -> Response[bytes]:
        return Response(path_part(request).encode(), media_type="application/msgpack")

    @post(f"/{kind}/nothing", status_code=HTTPStatus.OK, operation=Operation("No body.", direct=direct))
    async def nothing(request: Request[Any, Any, Any]) -> Response[bytes]:
        return Response(b"{}", media_type="application/json")

    return [echo, named, nothing]


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    file: Path = tmp_path_factory.mktemp("direct") / "tokens"
    file.write_text("full\nmember member\nreader read\n")
    file.chmod(0o600)
    tokens = Tokens(str(file), scopes=tuple(Scope))
    about = ApiAbout("test", "1", "test")
    server = HttpServer(
        "127.0.0.1",
        0,
        tokens,
        lambda: http_app(about, [*routes(True), *routes(False)], tokens),
        name="test",
        limits=LIMITS,
    )
    server.start()
    number = int(server.endpoint.rpartition(":")[2])
    wait_until_open(number)
    yield number
    server.stop()


def wait_until_open(port: int) -> None:
    until = time.monotonic() + 60
    with socket.socket() as probe:
        while probe.connect_ex(("127.0.0.1", port)) and time.monotonic() < until:
            time.sleep(0.01)


def post_of(path: str, body: bytes = b"", headers: str = FULL, length: int | None = None) -> bytes:
    about = f"Content-Length: {len(body) if length is None else length}\r\n"
    return f"POST /KIND/{path} HTTP/1.1\r\nHost: localhost\r\n{headers}{about}\r\n".encode() + body


CHUNKED = "Transfer-Encoding: chunked\r\n"


def chunked(path: str, *chunks: bytes) -> bytes:
    head = f"POST /KIND/{path} HTTP/1.1\r\nHost: localhost\r\n{FULL}{CHUNKED}\r\n".encode()
    return head + b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in chunks) + b"0\r\n\r\n"


def method_of(method: str, path: str = "echo") -> bytes:
    return f"{method} /KIND/{path} HTTP/1.1\r\nHost: localhost\r\n{FULL}\r\n".encode()


SENT = {
    "a body": post_of("echo", b"hello"),
    "no body": post_of("echo"),
    "in chunks": chunked("echo", b"hello ", b"world"),
    "the largest body": post_of("echo", b"x" * BODY_BYTES_MAX),
    "a larger one": post_of("echo", b"x" * (BODY_BYTES_MAX + 1)),
    "a length that is far larger": post_of("echo", b"x", length=10**12),
    "larger in chunks": chunked("echo", b"x" * BODY_BYTES_MAX, b"x"),
    "no length": method_of("POST"),
    "a negative length": b"POST /KIND/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    "another media type": post_of("echo", b"hello", FULL + "Content-Type: text/plain\r\n"),
    "a problem": post_of("echo", b"problem"),
    "a fault": post_of("echo", b"fault"),
    "no token": post_of("echo", b"hello", ""),
    "a wrong token": post_of("echo", b"hello", "Authorization: Bearer none\r\n"),
    "a token of the scope": post_of("echo", b"hello", "Authorization: Bearer member\r\n"),
    "a token of another scope": post_of("echo", b"hello", "Authorization: Bearer reader\r\n"),
    "a token of a scope that the route does not name": post_of("named/a", b"", "Authorization: Bearer member\r\n"),
    "no token, and a body that never comes": post_of("echo", b"", "", 100),
    "a query": post_of("echo?a=1", b"hello"),
    "a body that is not read": post_of("nothing", b"hello"),
    "none where none is read": post_of("nothing"),
    "GET": method_of("GET"),
    "HEAD": method_of("HEAD"),
    "OPTIONS": method_of("OPTIONS"),
    "PUT": method_of("PUT"),
    "a slash behind": post_of("echo/", b"hello"),
    "two slashes": post_of("/echo", b"hello"),
    "a name": post_of("named/caf%C3%A9"),
    "a name with a slash": post_of("named/a%2fb"),
    "a name that is not UTF-8": post_of("named/%ff"),
    "no name": post_of("named/"),
    "no name and no slash": post_of("named"),
    "a name and more": post_of("named/a/b"),
    "a name in braces": post_of("named/{name:str}"),
    "dots": post_of("named/../echo", b"hello"),
    "an unknown path": post_of("none"),
    "half of a body": post_of("echo", b"hel", length=5),
    "half of a head": b"POST /KIND/echo HTTP/1.1\r\nHost: loc",
    "two at once": post_of("echo", b"first") + post_of("echo", b"second"),
    "three, and the second is wrong": post_of("echo", b"1") + post_of("echo?a", b"2") + post_of("named/3"),
    "one behind the end of another": post_of("echo", b"hello") + b"garbage\r\n\r\n",
}


INCOMPLETE = {
    "a length that is far larger",
    "a negative length",
    "no token, and a body that never comes",
    "half of a body",
    "half of a head",
}
LAST = b"POST /none HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def answered(port: int, name: str, kind: str, *, hangs_up: bool = False) -> Sequence[bytes]:
    """All that comes back until the server hangs up, which the last request asks for."""
    sent = SENT[name] if hangs_up or name in INCOMPLETE else SENT[name] + LAST
    data = bytearray()
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(sent.replace(b"KIND", kind.encode()))
        if hangs_up:
            client.shutdown(socket.SHUT_WR)
        while part := client.recv(65536):
            data += part
    return bytes(data).replace(kind.encode(), b"KIND").split(b"\r\n")


@pytest.mark.parametrize("name", SENT)
def test_the_answers_are_the_frameworks(name: str, port: int) -> None:
    framework = answered(port, name, "layers")
    assert framework[0].startswith(b"HTTP/1.1 ") or name == "half of a body", framework
    assert answered(port, name, "direct") == framework


@pytest.mark.parametrize("name", ["half of a body", "half of a head"])
def test_so_they_are_to_a_client_that_hangs_up(name: str, port: int) -> None:
    framework = answered(port, name, "layers", hangs_up=True)
    assert answered(port, name, "direct", hangs_up=True) == framework


def test_a_slow_client_delays_no_other(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as slow:
        slow.sendall(post_of("echo", b"hel", length=5).replace(b"KIND", b"direct"))
        assert answered(port, "a body", "direct")[0] == b"HTTP/1.1 200 OK"
        assert slow.recv(100) == b"", "it was hung up on"
