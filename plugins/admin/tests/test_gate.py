"""Checks in front of the routes: sizes, browsers, headers."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from lmcache_admin.service import AdminService
from lmcache_http.server import HttpLimits
from plugins.admin.tests.conversation import ask, changes_of, running
from plugins.admin.tests.stand_ins import StandInCache


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8080", "127.0.0.1", "127.9.9.9:1", "[::1]:8080", "a.localhost", "LOCALHOST."]
)
def test_without_a_token_names_of_this_machine_are_answered(host: str) -> None:
    with running() as server:
        assert ask(server, "/", Host=host).code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "10.0.0.1", "[", "127.0.0.1.evil.example", "", "evil@localhost"]
)
def test_without_a_token_no_other_name_is(host: str) -> None:
    with running() as server:
        refused = ask(server, "/", Host=host)
        assert (refused.code, refused.kind) == (421, "application/problem+json")
        assert "--http-token-file" in refused.body["detail"]


def test_with_a_token_any_name_is() -> None:
    with running("word") as server:
        assert ask(server, "/", Host="cache.example", Authorization="Bearer word").code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_page_of_another_site_changes_nothing(headers: dict[str, str]) -> None:
    cache = StandInCache()
    with running(cache=cache) as server:
        refused = ask(server, "/cache/clear", "POST", **headers)
        assert (refused.code, refused.kind) == (403, "application/problem+json")
        assert ask(server, "/status", **headers).code == 200, "no page can read it: no answer allows another origin"
        changes = changes_of(server)
        assert len(changes) >= 5
        for method, path in changes:
            assert ask(server, path, method, {}, **headers).code == 403, (method, path)
    assert cache.cached == 3


def test_a_page_of_this_server_may() -> None:
    with running() as server:
        own: dict[str, Any] = {"Origin": server.http.endpoint, "Sec-Fetch-Site": "same-origin"}
        assert ask(server, "/cache/clear", "POST", **own).code == 200


@pytest.mark.parametrize(("path", "code"), [("/status", 200), ("/nowhere", 404), ("/quota/a%00", 422)])
def test_every_answer_says_what_browsers_must_not_do(path: str, code: int) -> None:
    with running() as server:
        answer = ask(server, path)
    assert answer.code == code
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert "server" not in answer.headers


def test_sizes_are_bounded() -> None:
    with running(limits=HttpLimits(target_bytes=100, header_count=10)) as server:
        too_long = ask(server, f"/quota/{'x' * 100}")
        assert (too_long.code, too_long.kind) == (414, "application/problem+json")
        assert too_long.body["detail"] == "path and query have at most 100 bytes"
        too_many = ask(server, "/", **{f"X-{number}": "x" for number in range(10)})
        assert (too_many.code, too_many.body["detail"]) == (431, "a request has at most 10 headers")
        assert ask(server, "/").code == 200


@pytest.mark.parametrize("size", [20_000, 100_000])
def test_headers_are_bounded_also_when_they_come_at_once(api: AdminService, size: int) -> None:
    answer = ask(api, "/", **{"X-Long": "x" * size})
    assert (answer.code, answer.kind) == (431, "application/problem+json")
    assert answer.body["detail"] == "request line and headers have at most 16384 bytes"
    assert ask(api, "/", **{"X-Long": "x" * 15_000}).code == 200


@pytest.mark.parametrize("method", ["OPTIONS", "POST", "TRACE", "PATCH"])
def test_a_method_that_a_path_has_not_is_refused_with_those_that_it_has(api: AdminService, method: str) -> None:
    refused = ask(api, "/quota/a", method)
    assert (refused.code, refused.kind) == (405, "application/problem+json")
    assert refused.headers["allow"] == "DELETE, GET, PUT"


@pytest.mark.parametrize("path", ["/status", "/", "/healthcheck", "/openapi.json", "/quota/a", "/nowhere"])
def test_head_is_answered_as_get_is_without_a_body(path: str) -> None:
    with running() as server:
        asked = ask(server, path)
        status, headers, body = raw(server, f"HEAD {path} HTTP/1.1")
    changing = ("date", "content-length") if path in ("/status", "/healthcheck") else ("date",)
    same = {name: value for name, value in asked.headers.items() if name not in changing}
    assert status == asked.code
    assert {name: value for name, value in headers.items() if name not in changing} == same
    assert int(headers["content-length"]) > 0
    assert body == b""


def test_head_changes_nothing_and_needs_the_same_token() -> None:
    cache = StandInCache()
    with running("word", cache=cache) as server:
        assert raw(server, "HEAD /status HTTP/1.1")[0] == 401
        allowed = {"Authorization": "Bearer word"}
        assert raw(server, "HEAD /status HTTP/1.1", **allowed)[0] == 200
        status, headers, body = raw(server, "HEAD /cache/clear HTTP/1.1", **allowed)
        assert (status, headers["allow"], body) == (405, "POST", b"")
    assert cache.cached == 3


def raw(server: AdminService, line: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and everything behind them that comes for this request and until the server hangs up."""
    host, _, port = server.http.endpoint.removeprefix("http://").rpartition(":")
    sent = "".join(
        f"{name}: {value}\r\n" for name, value in {"Host": "localhost", "Connection": "close", **headers}.items()
    )
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(f"{line}\r\n{sent}\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *rest = head.decode().split("\r\n")
    fields = dict(each.split(": ", 1) for each in rest if not each.lower().startswith("connection"))
    return int(first.split()[1]), fields, body


def test_requests_at_once_are_bounded() -> None:
    entered, leave = threading.Semaphore(0), threading.Event()

    def slow() -> dict[str, Any]:
        entered.release()
        assert leave.wait(10)
        return {}

    with running(status=slow, limits=HttpLimits(requests=2)) as server:
        others = [threading.Thread(target=ask, args=(server, "/status")) for _ in range(2)]
        for other in others:
            other.start()
            assert entered.acquire(timeout=10)
        refused = ask(server, "/healthcheck")
        assert (refused.code, refused.kind, refused.headers["retry-after"]) == (503, "application/problem+json", "1")
        leave.set()
        for other in others:
            other.join()
        assert ask(server, "/healthcheck").code == 200


@pytest.fixture(scope="module")
def api() -> Any:
    with running() as server:
        yield server


@pytest.mark.parametrize(
    ("path", "method", "body", "says"),
    [
        ("/status?verbose=1", "GET", None, "this route takes no query; leave it out"),
        ("/status", "GET", {}, "this route takes no body; leave it out"),
        ("/quota/a", "DELETE", {"force": True}, "this route takes no body; leave it out"),
    ],
)
def test_what_no_route_reads_is_refused(api: AdminService, path: str, method: str, body: Any, says: str) -> None:
    answer = ask(api, path, method, body)
    assert (answer.code, answer.kind, answer.body["detail"]) == (422, "application/problem+json", says)
