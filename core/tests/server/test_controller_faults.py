"""Controllers that die in the middle of something: the server is red, recovers, and the next request succeeds."""

from __future__ import annotations

import time
from typing import Any

import pytest

from core.tests.server.conftest import StartServer
from lmcache_core.app.server import Server
from lmcache_devkit.fake_engine import FakeEngine

TOKENS = list(range(320))


def trip(target: Any, method: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The next call of a method raises; later ones do not."""
    original, tripped = getattr(target, method), list[str]()

    def once(*arguments: Any) -> Any:
        if not tripped:
            tripped.append(method)
            raise RuntimeError(f"injected into {method}")
        return original(*arguments)

    monkeypatch.setattr(target, method, once)
    return tripped


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


def restarts(server: Server, name: str) -> int:
    return int(server.status()["threads"][name]["restarts"])


@pytest.mark.parametrize("method", ["_looked_up", "_load", "_load_answered", "_begin", "_handle"])
def test_a_prefetch_that_trips_is_answered_and_the_next_one_works(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    server = start_server(l2_adapter=({"type": "memory"},))
    with FakeEngine(server.info.engine_endpoint) as engine:
        engine.store(TOKENS)
        wait_for(lambda: not server.status()["store"]["backlog_bytes"])
        engine.scheduler.clear()
        tripped = trip(server._parts.tiers.prefetch, method, monkeypatch)
        hits = engine.lookup(TOKENS, "tripped")
        assert hits in (0, 20)
        assert tripped
        wait_for(lambda: restarts(server, "prefetch") == 1)
        engine.end("tripped")
        engine.scheduler.clear()
        wait_for(lambda: server.status()["healthy"])
        assert engine.lookup(TOKENS, "next") == 20
        assert engine.retrieve(TOKENS, "next") == [engine.content(TOKENS, chunk) for chunk in range(20)]


@pytest.mark.parametrize("method", ["_enqueue", "_submit", "_answered"])
def test_a_store_that_trips_does_not_stop_the_next_one(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    server = start_server(l2_adapter=({"type": "memory"},))
    with FakeEngine(server.info.engine_endpoint) as engine:
        tripped = trip(server._parts.tiers.store, method, monkeypatch)
        engine.store(TOKENS)
        wait_for(lambda: restarts(server, "store") == 1)
        assert tripped
        other = [9, *TOKENS]
        assert engine.store(other)
        wait_for(lambda: server.status()["l2"][0]["usage"]["objects"] >= 20)
        wait_for(lambda: server.status()["l1"]["held"] == 0)
        wait_for(lambda: server.status()["store"]["backlog_bytes"] == 0)


def test_a_reaper_that_trips_goes_on_reaping(start_server: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start_server(worker_reap_timeout_seconds=0.2)
    engine = FakeEngine(server.info.engine_endpoint)
    engine.register()
    engine.worker.ping(engine.instance_id)
    engine.close()
    monkeypatch.setattr(
        server._parts.engine_port.reaper, "_checks", (_raise_once(), *server._parts.engine_port.reaper._checks)
    )
    wait_for(lambda: not server.status()["workers"])
    assert restarts(server, "reaper") == 1


def _raise_once() -> Any:
    raised: list[None] = []

    def check() -> None:
        if not raised:
            raised.append(None)
            raise RuntimeError("injected")

    return check
