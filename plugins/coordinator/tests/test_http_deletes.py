"""Servers that post events and keep no journals: what is over quota is deleted at their admin API."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lmcache_coordinator.models import EventKey
from lmcache_coordinator.posted_events import event_hash, key_of
from lmcache_core import HashChain, KeySpace, ObjectKey
from lmcache_fleet.messages import decode_reply
from plugins.coordinator.tests.coordinator_process import CoordinatorProcess
from plugins.coordinator.tests.test_routes import Poster

TOKEN = "token-of-members"
SALT = "over"


class StockServer(ThreadingHTTPServer):
    """Deletes what it is asked to, and posts it.  It knows `paths` alone."""

    def __init__(self, name: str, coordinator: CoordinatorProcess, *paths: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.daemon_threads = True
        self.name, self.coordinator, self.paths = name, coordinator, paths
        self.asked: list[tuple[str, str | None, Any]] = []
        self.seq = 0
        threading.Thread(target=self.serve_forever, daemon=True).start()
        says = {"instance_id": name, "ip": "127.0.0.1", "http_port": self.server_port}
        assert coordinator.ask("POST", "/instances", says).status == 200

    def post(self, kind: str, *keys: dict[str, Any]) -> None:
        self.seq += 1
        events = [{"type": kind, "key": key, "bytes": 1000} for key in keys]
        body = {"instance_id": self.name, "seq": self.seq, "events": events}
        assert self.coordinator.ask("POST", "/l2/events", body).body == {"recorded": len(keys)}


class _Handler(BaseHTTPRequestHandler):
    server: StockServer

    def do_DELETE(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, self.headers["Authorization"], body))
        is_known = self.path in self.server.paths
        if is_known:
            self.server.post("delete", *body["keys"])
        self.send_response(200 if is_known else 404)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[CoordinatorProcess]:
    token = tmp_path / "member-token"
    token.write_text(f"{TOKEN} full\n")
    token.chmod(0o600)
    flags = ("--eviction-check-interval", "0.2", "--member-token-file", str(token))
    with CoordinatorProcess(tmp_path, *flags) as coordinator:
        yield coordinator


def key(number: int, length: int = 32) -> dict[str, Any]:
    return {
        "chunk_hash_hex": number.to_bytes(length, "big").hex(),
        "model_name": "m",
        "kv_rank": 0,
        "cache_salt": SALT,
        "object_group_id": 0,
    }


@pytest.mark.parametrize("path", ["/cache/objects", "/l2"])
def test_what_is_over_quota_is_deleted_by_a_server_that_only_posts(coordinator: CoordinatorProcess, path: str) -> None:
    """And a server with journals, whose replies have no name for that backend, is asked for nothing."""
    journals = Poster(coordinator, "with-journals")
    stock = StockServer("stock", coordinator, path)
    keys = [key(number, length) for number, length in ((1, 32), (2, 32), (3, 8), (0, 8))]
    stock.post("store", *keys)
    assert coordinator.ask("PUT", f"/l2/quota/{SALT}", {"limit_gb": 0}).status == 200
    for _ in range(600):
        reply = decode_reply(coordinator.ask("POST", f"/fleet/heartbeat/{journals.name}").body)
        assert reply.commands == ()
        if not coordinator.ask("GET", f"/l2/status/{SALT}").body["usage_gb"]:
            break
        threading.Event().wait(0.05)
    assert coordinator.ask("GET", f"/l2/status/{SALT}").body["usage_gb"] == 0
    asked = [each for each in stock.asked if each[0] == path]
    assert {token for _, token, _ in asked} == {f"Bearer {TOKEN}"}
    assert {body["tier"] for _, _, body in asked} == {"l2"}
    deleted = [each for _, _, body in asked for each in body["keys"]]
    assert sorted(deleted, key=str) == sorted(keys, key=str), "each once, by the name that the server has given it"
    stock.shutdown()
    stock.server_close()


@pytest.mark.slow  # a server that does not answer is waited for
def test_one_that_hangs_does_not_keep_another_one_from_deleting(coordinator: CoordinatorProcess) -> None:
    """Nor the other tenants: what was sent to it is sent to another server after some intervals."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as hanging:  # accepts, and never answers
        says = {"instance_id": "hanging", "ip": "127.0.0.1", "http_port": hanging.server_port}
        assert coordinator.ask("POST", "/instances", says).status == 200
        stock = StockServer("stock", coordinator, "/l2")
        stock.post("store", *map(key, range(20)))
        assert coordinator.ask("PUT", f"/l2/quota/{SALT}", {"limit_gb": 0}).status == 200
        for _ in range(1200):
            if not coordinator.ask("GET", f"/l2/status/{SALT}").body["usage_gb"]:
                break
            threading.Event().wait(0.05)
        assert coordinator.ask("GET", f"/l2/status/{SALT}").body["usage_gb"] == 0
        stock.shutdown()
        stock.server_close()


@pytest.mark.parametrize("length", [1, 8, 31, 32])
def test_a_key_keeps_its_name(length: int) -> None:
    given = EventKey.model_validate(key(7, length))
    layout = bytes(15) + bytes((length,))
    space = KeySpace("m", 0, 0, SALT, 0, HashChain.BLAKE3, layout)
    assert key_of(ObjectKey(space, event_hash(given.chunk_hash_hex))) == given
