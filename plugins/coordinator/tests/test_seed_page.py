"""Every command of the page that coordinators are known by, its answers compared field by field; and what is refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lmcache_fleet.messages import PROOF_PATH, SECRET_HEADER, proof_of
from plugins.coordinator.tests.coordinator_process import CoordinatorProcess

EVENTS = {
    "instance_id": "server-1",
    "seq": 1,
    "events": [
        {
            "type": "store",
            "key": {"chunk_hash_hex": "aa", "model_name": "m", "kv_rank": 0, "cache_salt": "user-a"},
            "bytes": 1024,
        },
        {
            "type": "lookup",
            "key": {"chunk_hash_hex": "aa", "model_name": "m", "kv_rank": 0, "cache_salt": "user-a"},
            "bytes": 0,
        },
        {
            "type": "delete",
            "key": {"chunk_hash_hex": "aa", "model_name": "m", "kv_rank": 0, "cache_salt": "user-a"},
            "bytes": 0,
        },
    ],
}


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorProcess]:
    with CoordinatorProcess(tmp_path_factory.mktemp("coordinator")) as running:
        yield running


def test_the_log_says_where_it_listens(coordinator: CoordinatorProcess) -> None:
    assert f"LMCache INFO: MP coordinator listening on {coordinator.url}" in coordinator.log.read_text()


def test_instances_and_health(coordinator: CoordinatorProcess) -> None:
    assert coordinator.ask("GET", "/healthz") == (200, {"status": "healthy"})
    assert coordinator.ask("GET", "/instances") == (200, {"instances": []})
    said = {"instance_id": "server-1", "ip": "10.0.0.5", "http_port": 8080}
    assert coordinator.ask("POST", "/instances", said) == (200, {"instance_id": "server-1", "re_registered": False})
    assert coordinator.ask("POST", "/instances", said) == (200, {"instance_id": "server-1", "re_registered": True})
    (entry,) = coordinator.ask("GET", "/instances").body["instances"]
    assert entry["registration_time"] > 1.7e9
    assert {name: entry[name] for name in said} == said
    fields = "instance_id ip http_port registration_time metadata p2p_advertised_url mq_port"
    assert list(entry) == fields.split(), "in the order of the page"
    assert coordinator.ask("PUT", "/instances/server-1/heartbeat") == (200, {"instance_id": "server-1"})
    assert coordinator.ask("DELETE", "/instances/server-1").status == 204
    assert coordinator.ask("GET", "/instances") == (200, {"instances": []})
    for method, path in (("PUT", "/instances/server-1/heartbeat"), ("DELETE", "/instances/server-1")):
        status, body = coordinator.ask(method, path)
        assert status == 404
        assert "'server-1' is not registered" in body["detail"]


def test_quotas(coordinator: CoordinatorProcess) -> None:
    ok = {"cache_salt": "user-a", "limit_gb": 10.0, "status": "ok"}
    assert coordinator.ask("PUT", "/l2/quota/user-a", {"limit_gb": 10.0}) == (200, ok)
    status = {"cache_salt": "user-a", "quota_limit_gb": 10.0, "quota_exists": True, "usage_gb": 0.0}
    assert coordinator.ask("GET", "/l2/status/user-a") == (200, status)
    assert list(coordinator.ask("GET", "/l2/status/user-a").body) == list(status), "in the order of the page"
    assert list(coordinator.ask("GET", "/l2/status").body) == ["total_gb", "by_cache_salt"]
    removed = {"cache_salt": "user-a", "limit_gb": 0.0, "status": "removed"}
    assert coordinator.ask("DELETE", "/l2/quota/user-a") == (200, removed)
    assert coordinator.ask("DELETE", "/l2/quota/user-a").status == 404
    assert coordinator.ask("PUT", "/l2/quota/_default", {"limit_gb": 1}).body["cache_salt"] == "_default"
    assert coordinator.ask("GET", "/l2/status").body["by_cache_salt"][0]["cache_salt"] == "_default"
    assert coordinator.ask("DELETE", "/l2/quota/_default").status == 200
    # Salts without a quota have 0 bytes.
    nothing = {"cache_salt": "other", "quota_limit_gb": 0.0, "quota_exists": False, "usage_gb": 0.0}
    assert coordinator.ask("GET", "/l2/status/other") == (200, nothing)


def test_events(coordinator: CoordinatorProcess) -> None:
    store = {**EVENTS, "instance_id": "server-2", "events": EVENTS["events"][:1]}  # type: ignore[index]
    assert coordinator.ask("POST", "/l2/events", store) == (200, {"recorded": 1})
    assert coordinator.ask("GET", "/l2/status/user-a").body["usage_gb"] == round(1024 / 2**30, 10)
    assert coordinator.ask("GET", "/l2/status").body["total_gb"] == round(1024 / 2**30, 10)
    assert coordinator.ask("POST", "/l2/events", store) == (200, {"recorded": 0}), "it was recorded before"
    assert coordinator.ask("POST", "/l2/events", EVENTS) == (200, {"recorded": 3})
    assert coordinator.ask("GET", "/l2/status") == (200, {"total_gb": 0.0, "by_cache_salt": []})


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("PUT", "/l2/quota/a", {"limit_gb": -1}, 422, "limit_gb"),
        ("PUT", "/l2/quota/a", b'{"limit_gb": NaN}', 400, "JSON"),
        ("PUT", "/l2/quota/a", b'{"limit_gb": 1e999}', 400, "out of range"),
        ("PUT", "/l2/quota/a%2Fb", {"limit_gb": 1}, 404, ""),
        ("POST", "/l2/events", {**EVENTS, "seq": -1}, 422, "seq"),
        ("POST", "/l2/events", {**EVENTS, "events": [{"type": "boom"}]}, 422, "events.0"),
        (
            "POST",
            "/l2/events",
            {
                **EVENTS,
                "seq": 9,
                "events": [
                    EVENTS["events"][0],  # type: ignore[index]
                    {"type": "store", "key": {"chunk_hash_hex": "xyz", "model_name": "m", "kv_rank": 0}, "bytes": 1},
                ],
            },
            422,
            "events.1.key.chunk_hash_hex",
        ),
        ("POST", "/l2/events", {**EVENTS, "seq": 9, "events": EVENTS["events"][:1] * 10_001}, 413, "10000"),  # type: ignore[index]
        ("POST", "/instances", {"instance_id": ""}, 422, "instance_id"),
        ("POST", "/instances", {"instance_id": "a", "http_port": 70000}, 422, "http_port"),
        ("POST", "/fleet/journal", b"\xff\xff", 422, "not a page"),
    ],
)
def test_what_is_wrong_is_refused_and_changes_nothing(
    coordinator: CoordinatorProcess, method: str, path: str, body: Any, status: int, words: str
) -> None:
    reply = coordinator.ask(method, path, body)
    assert reply.status == status, reply
    assert words in reply.body["detail"]
    assert coordinator.ask("GET", "/l2/status") == (200, {"total_gb": 0.0, "by_cache_salt": []})
    assert coordinator.ask("GET", "/instances") == (200, {"instances": []})


def test_a_secret_binds_an_id_and_nothing_else(coordinator: CoordinatorProcess) -> None:
    said = {"instance_id": "bound", "secret": True}
    secret = coordinator.ask("POST", "/instances", said).body["secret"]
    header = {"lmcache-instance-secret": secret}
    assert len(secret) == 64
    assert coordinator.ask("PUT", "/instances/bound/heartbeat").status == 403
    assert coordinator.ask("DELETE", "/instances/bound", headers={"lmcache-instance-secret": "00" * 32}).status == 403
    assert coordinator.ask("POST", "/instances", said).status == 409
    assert coordinator.ask("POST", "/instances", said, header).body == {"instance_id": "bound", "re_registered": True}
    assert coordinator.ask("PUT", "/instances/bound/heartbeat", headers=header).status == 200
    assert coordinator.ask("PUT", "/instances/bound/heartbeat", headers={"lmcache-instance-secret": "x"}).status == 400
    assert coordinator.ask("DELETE", "/instances/bound", headers=header).status == 204


def test_a_live_id_is_given_to_the_server_at_its_address_that_proves_to_be_the_one_that_asks(
    coordinator: CoordinatorProcess,
) -> None:
    old, new, other = (bytes([number]) * 32 for number in (1, 2, 3))
    is_at_the_address = [old]

    class Admin(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            proof = proof_of(is_at_the_address[0], self.path.removeprefix(PROOF_PATH))
            body = json.dumps({"proof": proof}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    def register(secret: bytes, port: int) -> int:
        says = {"instance_id": "moved", "ip": "127.0.0.1", "http_port": port, "secret": True}
        return coordinator.ask("POST", "/instances", says, {SECRET_HEADER: secret.hex()}).status

    with ThreadingHTTPServer(("127.0.0.1", 0), Admin) as admin:
        threading.Thread(target=admin.serve_forever, daemon=True).start()
        assert register(old, admin.server_port) == 200
        assert register(new, admin.server_port) == 409, "the one before it lives"
        is_at_the_address[0] = new
        assert register(other, admin.server_port) == 409
        assert register(new, 1) == 200, "the address is the one that was registered before"
        admin.shutdown()
    assert register(old, admin.server_port) == 409, "no answer"
    heartbeat = "/instances/moved/heartbeat"
    assert coordinator.ask("PUT", heartbeat, headers={SECRET_HEADER: new.hex()}).status == 200
    assert coordinator.ask("PUT", heartbeat, headers={SECRET_HEADER: old.hex()}).status == 403


def test_a_quota_survives_a_coordinator_that_is_killed(tmp_path: Path) -> None:
    with CoordinatorProcess(tmp_path) as coordinator:
        for number in range(5):
            assert coordinator.ask("PUT", f"/l2/quota/salt-{number}", {"limit_gb": number}).status == 200
        coordinator.ask("DELETE", "/l2/quota/salt-2")
        secret = coordinator.ask("POST", "/instances", {"instance_id": "s", "secret": True}).body["secret"]
        coordinator.kill()
        coordinator.start()
        salts = coordinator.ask("GET", "/l2/status").body["by_cache_salt"]
        assert {each["cache_salt"]: each["quota_limit_gb"] for each in salts} == {
            "salt-0": 0.0,
            "salt-1": 1.0,
            "salt-3": 3.0,
            "salt-4": 4.0,
        }
        # The id may still be alive: it is not given to another one now.
        assert coordinator.ask("POST", "/instances", {"instance_id": "s", "secret": True}).status == 409
        header = {"lmcache-instance-secret": secret}
        assert coordinator.ask("POST", "/instances", {"instance_id": "s", "secret": True}, header).status == 200
