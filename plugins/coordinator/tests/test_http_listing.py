"""Servers that post events and keep no journals: what was lost is found by a listing of shared L2."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from lmcache_coordinator.coordinator import Coordinator
from lmcache_coordinator.models import CacheEvent, EventKey
from lmcache_coordinator.registry import Registration
from lmcache_coordinator.settings import read_settings
from lmcache_coordinator.states.sqlite import SqliteState
from lmcache_core.builtin.lru import LeastRecentlyUsed
from lmcache_devkit import FakeClock
from plugins.coordinator.tests.coordinator_process import CoordinatorProcess

TOKEN = "token-of-members"
SIZE = 1000


def key(number: int) -> dict[str, Any]:
    name = {"chunk_hash_hex": number.to_bytes(8, "big").hex(), "model_name": "m", "kv_rank": 0}
    return {**name, "cache_salt": "a", "object_group_id": 0}


class Backend(ThreadingHTTPServer):
    """The admin API of a server, which knows one path and lists these objects in pages."""

    def __init__(self, objects: Sequence[int], path: str = "/cache/objects") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.daemon_threads = True
        self.path = path
        self.entries: list[Any] = [{"key": key(each), "size_bytes": SIZE} for each in objects]
        self.asked: list[tuple[str, str | None, dict[str, list[str]]]] = []
        self.says: dict[str, Any] = {"shared": True}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Backend
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        self.server.asked.append((parts.path, self.headers["Authorization"], query))
        first, size = int(query.get("page_token", ["0"])[0]), int(query["page_size"][0])
        rest = len(self.server.entries) > first + size
        page = {
            "entries": self.server.entries[first : first + size],
            "next_page_token": str(first + size) if rest else None,
            **self.server.says,
        }
        body = json.dumps(page).encode()
        self.send_response(200 if parts.path == self.server.path else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.mark.parametrize("path", ["/cache/objects", "/l2/keys"])
def test_what_was_there_before_the_start_is_counted(tmp_path: Path, path: str) -> None:
    token = tmp_path / "member-token"
    token.write_text(f"{TOKEN} full\n")
    token.chmod(0o600)
    flags = ("--resync-page-size", "10", "--resync-poll-interval", "0.1", "--member-token-file", str(token))
    with closing(Backend(range(25), path)) as backend, CoordinatorProcess(tmp_path, *flags) as coordinator:
        says = {"instance_id": "stock", "ip": "127.0.0.1", "http_port": backend.server_port}
        coordinator.ask("POST", "/instances", says)
        _until(lambda: coordinator.ask("GET", "/directory/keys").body["total"] == 25)
        assert coordinator.ask("GET", "/l2/status/a").body["usage_gb"] == round(25 * SIZE / 2**30, 10)
        asked = [(token, query) for each, token, query in backend.asked if each == path]
        assert {token for token, _ in asked} == {f"Bearer {TOKEN}"}
        assert [query.get("page_token") for _, query in asked] == [None, ["10"], ["20"]]
        assert {tuple(query["page_size"]) for _, query in asked} == {("10",)}


class Site:
    """A coordinator without its threads, and one server that lists and posts."""

    def __init__(self, backend: Backend, *flags: str) -> None:
        self.clock = FakeClock()
        self.backend = backend
        self.coordinator = Coordinator(
            read_settings(["--resync-page-size", "10", *flags]), SqliteState(":memory:"), LeastRecentlyUsed, self.clock
        )

    def join(self, name: str = "stock", port: int | None = None) -> None:
        says = Registration(ip="127.0.0.1", http_port=self.backend.server_port if port is None else port)
        self.coordinator.registry.register(name, says, None, False)

    def post(self, seq: int, kind: Any, *numbers: int) -> None:
        events = [CacheEvent(type=kind, key=EventKey.model_validate(key(each)), bytes=SIZE) for each in numbers]
        self.coordinator.posted.take("stock", seq, events)

    def looks(self) -> bool:
        """Was the backend asked?"""
        before = len(self.backend.asked)
        self.coordinator.listing.look()
        return len(self.backend.asked) > before

    @property
    def objects(self) -> int:
        return self.coordinator.usage.by_salt().get("a", 0) // SIZE

    @property
    def is_missing(self) -> bool:
        return any(each.condition.name == "posted_events_lost" for each in self.coordinator.conditions.active())


@pytest.fixture
def backend() -> Iterator[Backend]:
    with closing(Backend(range(25))) as made:
        yield made


def test_batches_that_were_lost_are_made_up_for(backend: Backend) -> None:
    site = Site(backend, "--no-enable-startup-resync")
    site.join()
    site.post(1, "store", *range(5))
    assert not site.looks(), "nothing is missing"
    site.post(3, "store", 30)  # and 2 had 5 to 24
    backend.entries.append({"key": key(30), "size_bytes": SIZE})
    assert (site.objects, site.is_missing) == (6, True)
    assert site.looks()
    assert (site.objects, site.is_missing) == (26, False)
    assert not site.looks()


def test_the_start_waits_for_a_server_only_so_long(backend: Backend) -> None:
    site = Site(backend, "--resync-max-wait", "5")
    assert not site.looks()
    site.join("without-port", 0)
    assert not site.looks()
    site.clock.advance(6)
    assert not site.looks()
    site.join()
    assert not site.looks()
    assert site.objects == 0


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        (["no entry"], {}),
        ([{"key": "ab" * 32, "size_bytes": SIZE}], {}),
        ([{"key": {**key(1), "kv_rank": -1}, "size_bytes": SIZE}], {}),
        ([{"key": key(1), "size_bytes": SIZE}], {"entries": None}),
        ([{"key": key(1), "size_bytes": SIZE}], {"next_page_token": "0"}),
    ],
)
def test_a_listing_that_cannot_be_used_takes_nothing_away(backend: Backend, entries: list[Any], says: Any) -> None:
    site = Site(backend, "--no-enable-startup-resync")
    site.join()
    site.post(1, "store", 40, 41)
    site.post(3, "store", 42)
    backend.entries[:] = entries
    backend.says = says
    assert site.looks()
    assert site.objects >= 3
    assert site.is_missing
    assert not site.looks(), "not at once again"
    backend.entries[:] = [{"key": key(each), "size_bytes": SIZE} for each in (41, 42)]
    backend.says = {}
    site.clock.advance(61)
    assert site.looks()
    assert (site.objects, site.is_missing) == (2, False)


def test_another_server_is_asked_where_one_fails(backend: Backend) -> None:
    for _ in range(8):  # in any order
        site = Site(backend)
        with closing(Backend([], path="/nothing")) as broken:
            site.join("broken", broken.server_port)
            site.join()
            assert site.looks()
        assert site.objects == 25


def test_a_start_without_a_listing_is_a_condition_and_is_tried_again(backend: Backend) -> None:
    site = Site(backend)
    assert (site.objects, site.is_missing) == (0, False), "no server is there that could have had anything"
    backend.path = "/nothing"
    site.join()
    assert site.looks()
    assert (site.objects, site.is_missing) == (0, True)
    backend.path = "/cache/objects"
    assert not site.looks(), "not at once"
    site.clock.advance(61)
    assert site.looks()
    assert (site.objects, site.is_missing) == (25, False)


def _until(condition: Any) -> None:
    for _ in range(400):
        if condition():
            return
        threading.Event().wait(0.05)
    raise AssertionError("it did not become true")
