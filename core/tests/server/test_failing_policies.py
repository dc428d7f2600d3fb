"""A policy of a plugin that fails is a condition; after three failures in a row the built-in one decides instead."""

from __future__ import annotations

import logging
from typing import Any, NoReturn

import pytest

from core.tests.server.conftest import StartServer
from core.tests.server.test_controller_faults import wait_for
from lmcache_core.app.server import Server
from lmcache_devkit.fake_engine import FakeEngine

CHUNKS = 20


def prompt(number: int) -> list[int]:
    return [number, *range(1, CHUNKS * 16)]


def fails(*_: Any) -> NoReturn:
    raise ValueError("injected")


def conditions(server: Server) -> dict[str, str]:
    return {each.condition.subject: each.condition.name for each in server.conditions()}


def test_objects_reach_l2_although_the_store_policy_raises(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server(l2_adapter=({"type": "memory"},))
    seat = server._parts.tiers.store.guarded
    monkeypatch.setattr(seat.policy, "plan", fails)
    with FakeEngine(server.info.engine_endpoint) as engine:
        engine.store(prompt(1))
        wait_for(lambda: conditions(server) == {"store policy": "policy_fails"})
        for number in range(2, 30):
            engine.store(prompt(number))
        wait_for(lambda: server.status()["store"]["adapters"]["memory"]["stored"] == 27 * CHUNKS)
    assert conditions(server) == {"store policy": "policy_replaced"}
    (active,) = server.conditions()
    assert "ValueError: injected" in active.condition.reason
    assert server.status()["state"] == "degraded"
    assert seat.failures == 3
    assert [r for r in caplog.records if r.levelno >= logging.ERROR and "store policy failed" in r.getMessage()]
    seat.take(seat.policy)
    assert conditions(server) == {}


def test_one_failure_is_over_with_the_next_success(start_server: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start_server(l2_adapter=({"type": "memory"},))
    with FakeEngine(server.info.engine_endpoint) as engine:
        for number in range(8):
            with monkeypatch.context() as patch:
                patch.setattr(server._parts.tiers.store.guarded.policy, "plan", fails)
                engine.store(prompt(2 * number))
                wait_for(lambda: "store policy" in conditions(server))
            engine.store(prompt(2 * number + 1))
            wait_for(lambda: conditions(server) == {})
    assert server._parts.tiers.store.guarded.failures == 8


def test_l1_does_not_run_full_although_the_eviction_policy_raises(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server(l1_size_gb=1 / 512)
    monkeypatch.setattr(server._parts.tiers.eviction.guarded.policy, "victims", fails)
    with FakeEngine(server.info.engine_endpoint) as engine:
        for number in range(30):
            engine.store(prompt(number))
        wait_for(lambda: conditions(server) == {"eviction policy": "policy_replaced"})
        for number in range(30, 60):
            engine.store(prompt(number))
        wait_for(lambda: server.status()["l1"]["evicted"] > 0)
        wait_for(lambda: server._parts.tiers.cache.used_ratio <= 0.85)
        assert engine.lookup(prompt(59), "last") == CHUNKS, "what was used last is still there"
        engine.end("last")


@pytest.mark.parametrize("method", ["on_insert", "victims"])
def test_an_adapter_does_not_run_full_although_its_eviction_policy_raises(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    memory = {"type": "memory", "max_size_gb": 1 / 512, "eviction": {"eviction_policy": "LRU"}}
    server = start_server(l2_adapter=(memory,))
    seat = server._parts.tiers.l2.evictions[0].guarded
    monkeypatch.setattr(seat.policy, method, fails)
    with FakeEngine(server.info.engine_endpoint) as engine:
        for number in range(60):
            engine.store(prompt(number))
            assert server._parts.tiers.store.drain(10)
        wait_for(lambda: server.status()["l2"][0]["eviction"]["evicted"] > 0)
    assert conditions(server)["eviction policy of adapter memory"] == "policy_replaced"


def test_lookups_are_loaded_although_the_prefetch_policy_raises(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server(l2_adapter=({"type": "memory"},))
    monkeypatch.setattr(server._parts.tiers.prefetch.guarded.policy, "plan", fails)
    with FakeEngine(server.info.engine_endpoint) as engine:
        engine.store(prompt(1))
        assert server._parts.tiers.store.drain(10)
        found = []
        for number in range(4):
            engine.scheduler.clear()
            found.append(engine.lookup(prompt(1), f"r{number}"))
            engine.end(f"r{number}")
    assert found == [0, 0, CHUNKS, CHUNKS]
    assert conditions(server) == {"prefetch policy": "policy_replaced"}
