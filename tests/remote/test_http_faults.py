"""The HTTP proxy changes nothing but what its rule is about."""

from __future__ import annotations

import http.client
import http.server
import threading
from collections.abc import Iterator
from typing import Final

import pytest

from tests.remote.http_faults import Altered, HttpFaults, Status, Truncated, every
from tests.remote.loop_server import HOST

BODY: Final = bytes(range(256)) * 1000


class _Store(http.server.BaseHTTPRequestHandler):
    """PUT keeps a body, GET and HEAD answer with it, DELETE with 204."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    kept: dict[str, bytes]

    def do_PUT(self) -> None:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while length := int(self.rfile.readline(), 16):
                body += self.rfile.read(length)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers["Content-Length"]))
        self.kept[self.path] = body
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        body = self.kept.get(self.path)
        self.send_response(404 if body is None else 200)
        if self.path.endswith("?chunked"):
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"5\r\nhello\r\n6;x=y\r\n world\r\n0\r\n\r\n")
            return
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        if self.command == "GET" and body:
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_DELETE(self) -> None:
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        pass  # connections that the proxy ended


@pytest.fixture
def faults() -> Iterator[HttpFaults]:
    handler = type("Store", (_Store,), {"kept": {}})
    with _Server((HOST, 0), handler) as backend:
        serving = threading.Thread(target=backend.serve_forever, kwargs={"poll_interval": 0.02})
        serving.start()
        try:
            with HttpFaults(backend.server_address[1]) as faults:
                yield faults
        finally:
            backend.shutdown()
            serving.join()


@pytest.fixture
def client(faults: HttpFaults) -> Iterator[http.client.HTTPConnection]:
    client = http.client.HTTPConnection(HOST, faults.port, timeout=10)
    yield client
    client.close()


def ask(client: http.client.HTTPConnection, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    client.request(method, path, body)
    answer = client.getresponse()
    return answer.status, answer.read()


def test_requests_pass_on_one_connection(faults: HttpFaults, client: http.client.HTTPConnection) -> None:
    assert ask(client, "PUT", "/b/k", BODY) == (200, b"")
    assert ask(client, "GET", "/b/k") == (200, BODY)
    assert ask(client, "HEAD", "/b/k") == (200, b"")
    assert ask(client, "DELETE", "/b/k") == (204, b"")
    assert ask(client, "GET", "/b/none") == (404, b"")
    assert ask(client, "GET", "/b/any?chunked") == (404, b"hello world")
    assert faults.connected == 1


def test_bodies_in_chunks(client: http.client.HTTPConnection) -> None:
    client.request("PUT", "/b/k", iter([BODY[:1000], BODY[1000:]]), encode_chunked=True)
    assert client.getresponse().read() == b""
    assert ask(client, "GET", "/b/k") == (200, BODY)


def test_expectations_are_answered(client: http.client.HTTPConnection) -> None:
    client.request("PUT", "/b/k", BODY, {"Expect": "100-continue"})
    assert client.getresponse().read() == b""
    assert ask(client, "GET", "/b/k") == (200, BODY)


@pytest.mark.parametrize("code", [403, 500, 503])
def test_a_status_for_some_methods(faults: HttpFaults, client: http.client.HTTPConnection, code: int) -> None:
    faults.switch(every(Status(code), "PUT", "HEAD"))
    status, text = ask(client, "PUT", "/b/k", BODY)
    assert status == code
    assert b"<Error><Code>" in text
    assert ask(client, "HEAD", "/b/k") == (code, b"")
    assert ask(client, "GET", "/b/k") == (404, b""), "it was never stored"
    assert faults.answered == {Status(code): 2}
    faults.switch(None)
    assert ask(client, "PUT", "/b/k", BODY) == (200, b"")
    assert faults.connected == 1, "an answer with an error is an answer: the connection goes on"


def test_a_status_for_some_paths(faults: HttpFaults, client: http.client.HTTPConnection) -> None:
    faults.switch(every(Status(500), path="/b/"))
    assert ask(client, "PUT", "/a/k", BODY)[0] == 200
    assert ask(client, "PUT", "/b/k", BODY)[0] == 500


@pytest.mark.parametrize("kept", [0, 1, 5000])
def test_a_truncated_body(faults: HttpFaults, client: http.client.HTTPConnection, kept: int) -> None:
    ask(client, "PUT", "/b/k", BODY)
    faults.switch(every(Truncated(kept), "GET"))
    with pytest.raises(http.client.IncompleteRead) as raised:
        ask(client, "GET", "/b/k")
    assert raised.value.partial == BODY[:kept]
    faults.switch(None)
    client.close()
    assert ask(client, "GET", "/b/k") == (200, BODY)


def test_an_error_by_another_name(faults: HttpFaults, client: http.client.HTTPConnection) -> None:
    faults.switch(every(Status(400, "ExpiredToken")))
    status, text = ask(client, "GET", "/b/k")
    assert status == 400
    assert b"<Error><Code>ExpiredToken</Code>" in text


@pytest.mark.parametrize("at", [0, 1, len(BODY) - 1])
def test_an_altered_body(faults: HttpFaults, client: http.client.HTTPConnection, at: int) -> None:
    ask(client, "PUT", "/b/k", BODY)
    faults.switch(every(Altered(at), "GET"))
    status, body = ask(client, "GET", "/b/k")
    assert status == 200
    assert [place for place, (came, was) in enumerate(zip(body, BODY, strict=True)) if came != was] == [at]
    faults.switch(every(Altered(len(BODY)), "GET"))
    assert ask(client, "GET", "/b/k") == (200, BODY)
    assert faults.connected == 1
