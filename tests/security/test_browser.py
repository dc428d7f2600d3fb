"""A web page in a real Chromium tries every port of a server: by fetch, form, WebSocket, and under a name of its own.

Pages cannot be kept from sending bytes to ports of their visitor's machine.  None of it may change anything, and nothing
may be read.
"""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Error, Page

from demo.server_process import HOST, ServerProcess
from lmcache_devkit import free_port
from lmcache_devkit.fake_engine import FakeEngine
from tests.observability.browser import CHROMIUM, browser

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (apt-get install chromium)")

NAME = "pages.example"
"""What the attacker's pages are called; it points to this machine."""
FLAGS = (
    f"--host-resolver-rules=MAP {NAME} {HOST}",
    # Newer browsers keep some pages from some local ports by themselves; these tests are about our part.
    "--disable-features=LocalNetworkAccessChecks,BlockInsecurePrivateNetworkRequests",
)
TOKENS = list(range(64))
CHUNKS = 4
MODEL = "secret-model-name"
SLED = b"\x01" * 300
"""Empty frames of ZMTP 1.0, for whatever offset the text before them ends at; browsers send so short a body at once."""


@dataclass(frozen=True)
class Site:
    server: ServerProcess
    metrics_port: int
    engine: FakeEngine
    chromium: Browser
    own_port: int
    """Where the attacker's pages come from."""

    @property
    def engine_url(self) -> str:
        return f"http://{HOST}:{self.server.port}/"

    def requests(self) -> int:
        return int(self.server.status()["requests"]["requests"])

    def refused(self) -> int:
        return int(self.server.status()["connections"]["refused"])

    def settings(self) -> object:
        with urllib.request.urlopen(f"http://{HOST}:{self.server.http_port}/config", timeout=10) as answer:
            return json.load(answer)

    def still_has_everything(self) -> None:
        assert self.engine.lookup(TOKENS) == CHUNKS
        assert self.engine.retrieve(TOKENS) == [self.engine.content(TOKENS, chunk) for chunk in range(CHUNKS)]
        self.engine.end()


class _Blank(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"<!doctype html><title>a page of the internet</title><body></body>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder: Path = tmp_path_factory.mktemp("browser")
    metrics_port = free_port()
    options = ("--l1-size-gb", "0.0625", "--chunk-size", "16", "--prometheus-port", str(metrics_port))
    pages = ThreadingHTTPServer((HOST, 0), _Blank)
    threading.Thread(target=pages.serve_forever, daemon=True).start()
    with (
        ServerProcess(options, folder / "server.log") as server,
        FakeEngine(f"tcp://{HOST}:{server.port}", model=MODEL) as engine,
        browser(*FLAGS) as chromium,
    ):
        assert engine.store(TOKENS)
        server.status()
        try:
            yield Site(server, metrics_port, engine, chromium, pages.server_port)
        finally:
            pages.shutdown()
            pages.server_close()


@pytest.fixture(scope="module")
def tabs() -> list[Page]:
    """The one that the next test gets, or none."""
    return []


@pytest.fixture
def page(site: Site, tabs: list[Page]) -> Iterator[Page]:
    """A page of the attacker, loaded anew in the tab that the test before had: a new tab costs the browser more than most tests
    do.  Where WebSockets were refused, Chromium lets the next ones of the tab wait for seconds."""
    if not tabs:
        tabs.append(site.chromium.new_page())
        tabs[0].on("websocket", lambda _: tabs.clear())
    page = tabs[0]
    page.goto(f"http://{NAME}:{site.own_port}/")
    yield page
    page.unroute_all()
    if page not in tabs:
        page.close()


def operation(*frames: bytes) -> bytes:
    return b"".join(bytes([len(frame) + 1, frame is not frames[-1]]) + frame for frame in frames)


CLEAR = operation(b"\x01", b"\x14", b"\xc3")
BODIES = [list(SLED[:odd] + SLED + operation(b"-") + CLEAR) for odd in (0, 1)]
"""Operation 20 (clear, by force) behind frames that take up the head of the HTTP request, at either parity."""

SENDERS = {
    "fetch": """async ([url, body]) => { try {
        await fetch(url, {method: "POST", mode: "no-cors", body: new Blob([new Uint8Array(body)], {type: "text/plain"})})
    } catch {} }""",
    "keepalive": """async ([url, body]) => { try {
        await fetch(url, {method: "POST", mode: "no-cors", keepalive: true, body: new Uint8Array(body)})
    } catch {} }""",
    "beacon": """([url, body]) => { navigator.sendBeacon(url, new Blob([new Uint8Array(body)], {type: "text/plain"})) }""",
    "xhr": """([url, body]) => new Promise(done => { const xhr = new XMLHttpRequest();
        xhr.onloadend = done; xhr.open("POST", url); xhr.setRequestHeader("Content-Type", "text/plain");
        xhr.send(new Uint8Array(body)) })""",
    "form": """([url, body]) => new Promise(done => {
        const frame = document.createElement("iframe"); frame.name = "target"; document.body.append(frame);
        const form = document.createElement("form"); const input = document.createElement("input");
        form.method = "POST"; form.action = url; form.enctype = "multipart/form-data"; form.target = "target";
        input.type = "file"; input.name = "f"; const files = new DataTransfer();
        files.items.add(new File([new Uint8Array(body)], "f")); input.files = files.files;
        form.append(input); document.body.append(form); form.submit(); setTimeout(done, 500) })""",
    "WebSocket": """([url, body]) => new Promise(done => { const socket = new WebSocket(url.replace("http", "ws"));
        socket.onopen = () => socket.send(new Uint8Array(body)); socket.onclose = done; })""",
    "image": """([url, body]) => new Promise(done => { const image = new Image(); image.onload = image.onerror = done;
        image.src = url + "?" + "%01".repeat(200) })""",
    "EventSource": """([url, body]) => new Promise(done => { const source = new EventSource(url);
        source.onerror = () => { source.close(); done() } })""",
    "TLS": """async ([url, body]) => { try {
        await fetch(url.replace("http", "https"), {method: "POST", mode: "no-cors", body: new Uint8Array(body)})
    } catch {} }""",
}


def until(condition: Callable[[], bool], page: Page) -> bool:
    for _ in range(100):
        if condition():
            return True
        page.wait_for_timeout(50)
    return False


@pytest.mark.parametrize("how", SENDERS)
@pytest.mark.parametrize("host", [HOST, "localhost", NAME])
def test_nothing_that_a_page_sends_to_the_engine_port_is_a_request(site: Site, page: Page, how: str, host: str) -> None:
    requests, refused = site.requests(), site.refused()
    for body in BODIES:
        page.evaluate(SENDERS[how], [f"http://{host}:{site.server.port}/", body])
    arrived = until(lambda: site.refused() >= refused + len(BODIES) or site.requests() > requests, page)
    assert site.requests() == requests, "what the page sent was read as requests"
    site.still_has_everything()
    assert arrived, "it did not come as far as the port"


def test_a_visit_to_the_engine_port_shows_nothing(site: Site, page: Page) -> None:
    with pytest.raises(Error, match="ERR_"):
        page.goto(site.engine_url)
    page.wait_for_url("chrome-error://**")  # which would take the place of the next page
    site.still_has_everything()


READ = """async ([url, how]) => { try {
    const answer = await fetch(url, how); return [answer.status, answer.type, await answer.text()]
} catch (error) { return [0, "error", String(error)] } }"""
PATHS = ("/status", "/config", "/metrics", "/openapi.json", "/quota", "/cache/objects", "/")


@pytest.mark.parametrize("host", [HOST, "localhost", NAME])
def test_a_page_reads_nothing_of_the_other_ports(site: Site, page: Page, host: str) -> None:
    for port in (site.server.http_port, site.metrics_port):
        for path in PATHS:
            for how in ({}, {"mode": "no-cors"}, {"credentials": "include"}):
                status, _, text = page.evaluate(READ, [f"http://{host}:{port}{path}", how])
                assert (status, MODEL in text) == (0, False), (port, path, how, text)


CHANGES = (
    ("POST", "/cache/clear"),
    ("POST", "/clear-cache"),
    ("PUT", "/quota/a"),
    ("DELETE", "/quota/a"),
    ("POST", "/l2/adapters"),
    ("DELETE", "/l2/adapters/0"),
    ("PATCH", "/config"),
    ("PUT", "/config"),
)


@pytest.mark.parametrize("host", [HOST, "localhost", NAME])
def test_a_page_changes_nothing_at_the_admin_api(site: Site, page: Page, host: str) -> None:
    for method, path in CHANGES:
        for how in ({}, {"mode": "no-cors"}):
            url = f"http://{host}:{site.server.http_port}{path}"
            status, _, _ = page.evaluate(READ, [url, {**how, "method": method, "body": '{"force": true}'}])
            assert status == 0
    page.evaluate(SENDERS["form"], [f"http://{host}:{site.server.http_port}/cache/clear", [1, 2, 3]])
    page.evaluate(SENDERS["beacon"], [f"http://{host}:{site.server.http_port}/cache/clear", [1, 2, 3]])
    page.evaluate(SENDERS["WebSocket"], [f"http://{host}:{site.server.http_port}/cache/clear", []])
    site.still_has_everything()


@pytest.mark.parametrize("how", ["fetch", "beacon", "xhr", "form", "WebSocket", "image"])
@pytest.mark.parametrize("host", [HOST, NAME])
@pytest.mark.parametrize("port", ["HTTP", "metrics"])
def test_nothing_that_a_page_sends_to_an_http_port_changes_anything(
    site: Site, page: Page, how: str, host: str, port: str
) -> None:
    """The bodies that mean something to each: a JSON document, and operations of engines."""
    number, path = (site.server.http_port, "cache/clear") if port == "HTTP" else (site.metrics_port, "metrics")
    before = site.settings(), site.requests()
    for body in (list(b'{"force": true}'), BODIES[0]):
        page.evaluate(SENDERS[how], [f"http://{host}:{number}/{path}", body])
    assert (site.settings(), site.requests()) == before
    site.still_has_everything()


OPENS_A_WEBSOCKET = """url => new Promise(done => { const socket = new WebSocket(url);
    socket.onopen = () => done("open"); socket.onmessage = () => done("message"); socket.onclose = () => done("closed") })"""


@pytest.mark.parametrize("host", [HOST, "localhost", NAME])
@pytest.mark.parametrize("port", ["engine", "HTTP", "metrics"])
def test_no_port_opens_a_websocket(site: Site, page: Page, host: str, port: str) -> None:
    """A page may read what comes over one, whatever its origin."""
    number = {"engine": site.server.port, "HTTP": site.server.http_port, "metrics": site.metrics_port}[port]
    for path in ("", "status", "metrics"):
        assert page.evaluate(OPENS_A_WEBSOCKET, f"ws://{host}:{number}/{path}") == "closed"
    site.still_has_everything()


REBOUND_SENDERS = {
    **SENDERS,
    "any headers": """async ([url, body]) => { try { await fetch(url, {method: "PUT", body: new Uint8Array(body),
        headers: {"Content-Type": "application/octet-stream", "X-A": "\\u0001".repeat(9)}}) } catch {} }""",
}
"""Within one origin a page may use any method and any header."""


@pytest.mark.parametrize("how", REBOUND_SENDERS)
def test_under_a_rebound_name_nothing_at_the_engine_port_is_a_request(site: Site, page: Page, how: str) -> None:
    url = f"http://{NAME}:{site.server.port}/"
    page.route("**/attack", lambda route: route.fulfill(content_type="text/html", body="<p>"))
    page.goto(f"{url}attack")
    assert page.evaluate("origin") == url.rstrip("/"), "it has the engine port's origin"
    requests, refused = site.requests(), site.refused()
    for body in BODIES:
        page.evaluate(REBOUND_SENDERS[how], [url, body])
    arrived = until(lambda: site.refused() >= refused + len(BODIES) or site.requests() > requests, page)
    status, _, text = page.evaluate(READ, [url, {}])
    assert (status, MODEL in text) == (0, False)
    assert site.requests() == requests, "what the page sent was read as requests"
    site.still_has_everything()
    assert arrived, "it did not come as far as the port"


def test_a_name_that_points_here_to_deceive_reads_and_changes_nothing(site: Site, page: Page) -> None:
    """Rebinding: the page's own name has come to mean this machine, so that the browser sees one origin."""
    for port in (site.server.http_port, site.metrics_port):
        visited = page.goto(f"http://{NAME}:{port}/metrics")
        assert visited is not None
        assert visited.status == 421, port
        # what the browser got from the attacker's server before the name changed its meaning
        page.route("**/attack", lambda route: route.fulfill(content_type="text/html", body="<p>"))
        page.goto(f"http://{NAME}:{port}/attack")
        for path in PATHS:
            status, kind, text = page.evaluate(READ, [path, {}])
            assert (status, kind, MODEL in text) == (421, "basic", False), (port, path, text)
        for method, path in CHANGES:
            status, _, _ = page.evaluate(READ, [path, {"method": method, "body": '{"force": true}'}])
            assert status == 421, (port, method, path)
        for how in ("form", "beacon", "WebSocket"):
            page.evaluate(SENDERS[how], [f"http://{NAME}:{port}/cache/clear", list(b'{"force": true}')])
    site.still_has_everything()


def test_the_same_page_is_served_under_names_of_this_machine(site: Site, page: Page) -> None:
    """So that the tests above fail for what they say."""
    for host in (HOST, "localhost"):
        answer = page.goto(f"http://{host}:{site.metrics_port}/metrics")
        assert answer is not None
        assert answer.status == 200
        assert MODEL in answer.text()
        answer = page.goto(f"http://{host}:{site.server.http_port}/status")
        assert answer is not None
        assert MODEL in answer.text()
