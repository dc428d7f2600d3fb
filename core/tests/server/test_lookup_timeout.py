"""A whole server whose backend is silent: engines have their answer when the time for lookups is over."""

from __future__ import annotations

import itertools
import time

import pytest

from core.tests.server.conftest import StartServer
from lmcache_core.contracts.completion import JobId
from lmcache_devkit.fake_engine import FakeEngine

TOKENS = list(range(320))
FOR_EVER = 600.0


@pytest.mark.parametrize("verb", ["submit_lookup", "submit_load"])
def test_a_silent_backend_costs_an_engine_no_more_than_its_lookups_time(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    server = start_server(l2_adapter=({"type": "memory"},), lookup_timeout_seconds=0.3, l2_timeout_seconds=FOR_EVER)
    with FakeEngine(server.info.engine_endpoint) as engine:
        engine.store(TOKENS)
        deadline = time.monotonic() + 10
        while server.status()["store"]["backlog_bytes"] and time.monotonic() < deadline:
            time.sleep(0.01)
        engine.scheduler.clear()
        numbers = itertools.count(1_000_000)
        adapter = server._parts.tiers.l2.clients[0].adapter
        monkeypatch.setattr(adapter, verb, lambda *arguments: JobId(next(numbers)))
        assert engine.lookup(TOKENS, "silent") == 0
        assert server.status()["prefetch"]["timed_out"] == 1
        assert server.status()["prefetch"]["in_flight"] == 0
        assert engine.store([7, *TOKENS]), "and it goes on without what it did not get"
