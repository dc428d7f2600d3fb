"""Routes of plugins over a real socket: checked before they are asked, contained when they fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from lmcache_admin.service import AdminService
from lmcache_core import PluginRoute
from lmcache_core.app.masking import Hidden
from lmcache_core.contracts.http_route import HttpAnswer, HttpRefusal, HttpRequest, HttpRoute
from lmcache_http.plugin_calls import THREADS, UNANSWERED_MAX
from plugins.admin.tests.conversation import ask, running


class Body(BaseModel):
    count: int


class Echo(BaseModel):
    path: dict[str, str]
    query: dict[str, str]
    headers: list[str]
    body: str


def tell(request: HttpRequest) -> HttpAnswer:
    echo = Echo(
        path=dict(request.path), query=dict(request.query), headers=sorted(request.headers), body=request.body.decode()
    )
    return HttpAnswer(echo)


def refuse(request: HttpRequest) -> HttpAnswer:
    raise HttpRefusal(int(request.query["with"]), "count is 9: at most 3; send less")


def fail(request: HttpRequest) -> HttpAnswer:
    raise RuntimeError("the secret path is /x")


def leave(request: HttpRequest) -> HttpAnswer:
    raise SystemExit(3)


def interrupt(request: HttpRequest) -> HttpAnswer:
    raise KeyboardInterrupt


def answering(value: Any) -> Callable[[HttpRequest], HttpAnswer]:
    return lambda request: value


ROUTES = [
    HttpRoute("GET", "/acme/{one}/of/{two}", tell, "Tells.", query={"a": "anything"}, answers=Echo),
    HttpRoute("PUT", "/acme/{three}", tell, "Tells.", body=Body, answers=Echo),
    HttpRoute("GET", "/acme/refusal", refuse, "Refuses.", query={"with": "what with"}, refusals={409: "always"}),
    HttpRoute("GET", "/acme/failure", fail, "Fails."),
    HttpRoute("GET", "/acme/exit", leave, "Leaves."),
    HttpRoute("GET", "/acme/interrupt", interrupt, "Interrupts."),
    HttpRoute(
        "GET",
        "/acme/page",
        answering(
            HttpAnswer("<p>hello</p>", media_type="text/html; charset=utf-8", headers={"Cache-Control": "max-age=60"})
        ),
        "A page.",
        media_type="text/html",
        open=True,
    ),
    HttpRoute("GET", "/acme/bytes", answering(HttpAnswer(b"\x00\xff", 203, "application/octet-stream")), "Bytes."),
    HttpRoute("GET", "/acme/nothing", answering(None), "Answers nothing."),
    HttpRoute("GET", "/acme/status", answering(HttpAnswer({}, status=99)), "No status."),
    HttpRoute("GET", "/acme/header", answering(HttpAnswer({}, headers={"X": "a\r\nY: b"})), "Two headers in one."),
    HttpRoute("GET", "/acme/object", answering(HttpAnswer({"a": object()})), "No JSON."),
]
PLUGINS = [PluginRoute("acme_plugin", "acme", route) for route in ROUTES]


@pytest.fixture(scope="module")
def api() -> Iterator[AdminService]:
    with running(plugins=PLUGINS) as server:
        yield server


def test_it_receives_the_request(api: AdminService) -> None:
    answer = ask(api, "/acme/a%20b/of/%C3%A9?a=1%2B1", Authorization="Bearer x", Cookie="c=1", Accept="*/*")
    assert answer[:2] == (200, "application/json")
    assert answer.body == {
        "path": {"one": "a b", "two": "\u00e9"},
        "query": {"a": "1+1"},
        "headers": ["accept", "accept-encoding", "host"],
        "body": "",
    }
    assert ask(api, "/acme/x", "PUT", {"count": 1}).body["body"] == '{"count": 1}'


@pytest.mark.parametrize(
    ("method", "path", "body", "code", "says"),
    [
        ("GET", "/acme/x/of/y?b=1", None, 422, "query: nothing is called 'b'; known: a"),
        ("GET", "/acme/x/of/y?a=1&a=2", None, 422, "query: 'a' is given twice; give it once"),
        ("GET", "/acme/x/of/y?a=%ff", None, 422, "the query is not"),
        ("GET", "/acme/x/of/%ff", None, 422, "the path is not percent-encoded UTF-8"),
        ("GET", "/acme/x/of/y%2Fz", None, 404, "Not Found"),
        ("GET", "/acme/failure?a=1", None, 422, "this route takes no query; leave it out"),
        ("GET", "/acme/failure", {}, 422, "this route takes no body; leave it out"),
        ("PUT", "/acme/x", b"{", 400, "the body is not JSON"),
        ("PUT", "/acme/x", {"count": "1"}, 422, "field 'count' is '1'"),
        ("PUT", "/acme/x", {}, 422, "field 'count' is required"),
        ("PUT", "/acme/x", b'{"count": 1, "x": "' + b"y" * 70_000 + b'"}', 413, "Request Entity Too Large"),
        ("DELETE", "/acme/x", None, 405, "Method Not Allowed"),
    ],
)
def test_what_it_does_not_take_does_not_reach_it(
    api: AdminService, method: str, path: str, body: Any, code: int, says: str
) -> None:
    answer = ask(api, path, method, body)
    assert (answer.code, answer.kind) == (code, "application/problem+json")
    assert answer.body["detail"].startswith(says)


def test_a_refusal_that_it_declares_is_answered(api: AdminService) -> None:
    answer = ask(api, "/acme/refusal?with=409")
    assert (answer.code, answer.kind) == (409, "application/problem+json")
    assert answer.body["detail"] == "count is 9: at most 3; send less"


@pytest.mark.parametrize(
    ("path", "logged"),
    [
        ("/acme/failure", "the secret path is /x"),
        ("/acme/exit", "SystemExit: 3"),
        ("/acme/interrupt", "KeyboardInterrupt"),
        ("/acme/refusal?with=410", "it refused with 410, which is none of its refusals"),
        ("/acme/nothing", "it answered NoneType, which is not an HttpAnswer"),
        ("/acme/status", "it answered with status 99"),
        ("/acme/header", "in a header, which is not a line of ASCII text"),
        ("/acme/object", "TypeError"),
    ],
)
def test_a_fault_of_it_is_logged_under_its_name(
    api: AdminService, path: str, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = ask(api, path)
    assert (answer.code, answer.kind) == (500, "application/problem+json")
    assert answer.body["detail"] == "plugin 'acme_plugin' failed to answer; the server's log says why"
    assert "route of a plugin failed plugin=acme_plugin offer=acme method=GET" in caplog.text
    assert logged in caplog.text
    assert ask(api, "/healthcheck").code == 200


def raw(api: AdminService, path: str) -> Any:
    from http.client import HTTPConnection

    connection = HTTPConnection(api.http.endpoint.removeprefix("http://"), timeout=10)
    connection.request("GET", path)
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    return answer, data


def test_pages_and_bytes_are_sent_as_they_are(api: AdminService) -> None:
    page, text = raw(api, "/acme/page")
    assert (page.status, page.getheader("Content-Type"), text) == (200, "text/html; charset=utf-8", b"<p>hello</p>")
    assert page.getheader("Cache-Control") == "max-age=60"
    assert "script-src 'self'" in page.getheader("Content-Security-Policy")
    data, body = raw(api, "/acme/bytes")
    assert (data.status, data.getheader("Content-Type"), body) == (203, "application/octet-stream", b"\x00\xff")


def test_a_literal_path_is_found_before_a_parameter(api: AdminService) -> None:
    """`PUT /acme/{three}` and `GET /acme/failure` share a place."""
    assert ask(api, "/acme/failure").code == 500
    assert ask(api, "/acme/failure", "PUT", {"count": 1}).code == 405


def test_the_token_is_asked_for_unless_a_route_is_open() -> None:
    with running("word", plugins=PLUGINS) as server:
        assert ask(server, "/acme/x/of/y").code == 401
        assert raw(server, "/acme/page")[1] == b"<p>hello</p>"


def test_they_are_described() -> None:
    with running(plugins=PLUGINS) as server:
        paths = ask(server, "/openapi.json").body["paths"]
    about = paths["/acme/{one}/of/{two}"]["get"]
    assert [each["name"] for each in about["parameters"]] == ["one", "two", "a"]
    assert about["responses"]["200"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Echo"}
    assert paths["/acme/{three}"]["put"]["requestBody"]["required"]
    assert paths["/acme/refusal"]["get"]["responses"]["409"]["description"] == "always"
    assert paths["/acme/page"]["get"]["security"] == []


def test_without_metrics_it_is_said_how_to_have_them(api: AdminService) -> None:
    answer = ask(api, "/metrics")
    assert (answer.code, answer.kind) == (404, "application/problem+json")
    assert "pip install lmcache-observability" in answer.body["detail"]


def test_routes_that_never_answer_block_no_other(caplog: pytest.LogCaptureFixture) -> None:
    leave_it = threading.Event()

    def hang(request: HttpRequest) -> HttpAnswer:
        leave_it.wait(30)
        return HttpAnswer({})

    stuck = PluginRoute("acme_plugin", "acme", HttpRoute("GET", "/acme/stuck", hang, "Hangs."))
    other = PluginRoute("other_plugin", "other", HttpRoute("GET", "/other", answering(HttpAnswer({})), "Answers."))
    with running(plugins=[stuck, other], plugin_seconds=0.3) as server:
        askers = [threading.Thread(target=ask, args=(server, "/acme/stuck")) for _ in range(2 * THREADS)]
        for asker in askers:
            asker.start()
        assert ask(server, "/healthcheck").code == 200
        for asker in askers:
            asker.join(10)
        answer = ask(server, "/acme/stuck")
        assert (answer.code, answer.kind) == (504, "application/problem+json")
        assert answer.body["detail"].startswith("plugin 'acme_plugin' did not answer in time")
        assert ask(server, "/status").code == 200
        assert ask(server, "/other").code == 200
    leave_it.set()
    assert "route of a plugin does not answer plugin=acme_plugin method=GET path=/acme/stuck" in caplog.text


def test_an_open_page_is_sent_as_it_is_and_data_never() -> None:
    """A password that is a word of the page."""
    html = HttpAnswer(b'"password"', media_type="text/html")
    text = HttpAnswer(b'"password"', media_type="text/plain")
    routes = [
        HttpRoute("GET", "/page", answering(html), "A page.", open=True),
        HttpRoute("GET", "/open", answering(HttpAnswer(["password"])), "Open data.", open=True),
        HttpRoute("GET", "/text", answering(text), "Text."),
    ]
    plugins = [PluginRoute("acme_plugin", "acme", route) for route in routes]
    with running(plugins=plugins, hide=Hidden(["password"]).data) as server:
        assert ask(server, "/page").body == "password"
        assert ask(server, "/open").body == ["**********"]
        assert ask(server, "/text").body == "**********"


def test_calls_without_an_answer_do_not_pile_up() -> None:
    leave_it = threading.Event()

    def hang(request: HttpRequest) -> HttpAnswer:
        leave_it.wait(30)
        return HttpAnswer({})

    stuck = PluginRoute("acme_plugin", "acme", HttpRoute("GET", "/acme/stuck", hang, "Hangs."))
    with running(plugins=[stuck], plugin_seconds=0.3) as server:
        askers = [threading.Thread(target=ask, args=(server, "/acme/stuck")) for _ in range(UNANSWERED_MAX)]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join(10)
        refused = ask(server, "/acme/stuck")
        assert (refused.code, refused.kind) == (503, "application/problem+json")
        assert refused.body["detail"].startswith(f"plugin 'acme_plugin' has not answered {UNANSWERED_MAX} requests")
        leave_it.set()
        deadline = time.monotonic() + 10
        while ask(server, "/acme/stuck").code != 200:
            assert time.monotonic() < deadline, "those without a waiter still occupy threads"


def test_a_slow_route_blocks_no_other() -> None:
    entered, leave_it = threading.Event(), threading.Event()

    def wait(request: HttpRequest) -> HttpAnswer:
        entered.set()
        assert leave_it.wait(10)
        return HttpAnswer({})

    slow = PluginRoute("acme_plugin", "acme", HttpRoute("GET", "/acme/slow", wait, "Waits."))
    with running(plugins=[slow]) as server:
        asking = threading.Thread(target=ask, args=(server, "/acme/slow"))
        asking.start()
        assert entered.wait(10)
        assert ask(server, "/healthcheck").code == 200
        leave_it.set()
        asking.join(10)
        assert not asking.is_alive()
