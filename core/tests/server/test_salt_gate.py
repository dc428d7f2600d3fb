"""Requests without a salt, where they are refused."""

from __future__ import annotations

import logging

import pytest

from core.tests.server.conftest import StartServer
from lmcache_core.jobs.fault_log import QUIET_SECONDS
from lmcache_core.server.request_fields import SaltGate
from lmcache_devkit.fake_clock import FakeClock
from lmcache_devkit.fake_engine import FakeEngine

TOKENS = list(range(160))


def test_every_salt_is_admitted_by_default() -> None:
    gate = SaltGate(False, FakeClock())
    assert gate.admits("")
    assert gate.admits("a")
    assert gate.refused == 0


def test_refusals_are_counted_and_logged_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    gate = SaltGate(True, clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            assert not gate.admits("")
            assert gate.admits("a")
        assert [record.getMessage().count("refused=1;") for record in caplog.records] == [1]
        clock.advance(QUIET_SECONDS)
        assert not gate.admits("")
    assert gate.refused == 6
    assert len(caplog.records) == 2
    assert "refused=6; give requests a salt, or leave out --reject-unsalted" in caplog.records[1].getMessage()


def test_a_salt_that_makes_keys_too_long_is_refused_with_the_reason(
    start_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server()
    with FakeEngine(server.info.engine_endpoint, model="m" * 1930, salt="s" * 100) as engine:
        assert engine.lookup(TOKENS) == 0
        engine.store(TOKENS)
        assert server.status()["l1"]["free"] == server.status()["l1"]["total"]
    assert "request refused reason=the key of model" in caplog.text
    assert "request failed" not in caplog.text


@pytest.mark.parametrize("maps_memory", [True, False])
def test_an_engine_without_a_salt_runs_uncached(start_server: StartServer, maps_memory: bool) -> None:
    server = start_server(reject_unsalted=True)
    endpoint = server.info.engine_endpoint
    with (
        FakeEngine(endpoint, maps_memory=maps_memory) as unsalted,
        FakeEngine(endpoint, salt="a") as salted,
    ):
        for _ in range(2):
            assert unsalted.lookup(TOKENS) == 0
            unsalted.store(TOKENS)
            assert unsalted.retrieve(TOKENS) is None
            unsalted.end()
        assert server.status()["l1"]["free"] == server.status()["l1"]["total"]
        assert salted.store(TOKENS)
        assert salted.lookup(TOKENS) == 10
        assert salted.retrieve(TOKENS) == [salted.content(TOKENS, chunk) for chunk in range(10)]
        salted.end()
        assert server.status()["requests"]["unsalted_refused"] >= 6
        assert all(thread["restarts"] == 0 for thread in server.status()["threads"].values())
