"""A stop takes about as long as it may, also with adapters that do not answer."""

from __future__ import annotations

import time

import pytest

from core.tests.injected import injected
from core.tests.server.conftest import StartServer
from lmcache_core.app.server import HASTY_CLOSE_SECONDS
from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_devkit.fake_engine import FakeEngine


def test_what_draining_took_is_not_given_to_closing(start_server: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start_server(l2_adapter=(injected(verbs=["store"], lost=1.0), {"type": "memory"}))
    given: list[float] = []
    close = AdapterClient.close

    def closing(client: AdapterClient, deadline_seconds: float) -> None:
        given.append(deadline_seconds)
        close(client, deadline_seconds)

    monkeypatch.setattr(AdapterClient, "close", closing)
    with FakeEngine(server.info.engine_endpoint) as engine:
        engine.store(list(range(160)))
        time.sleep(0.1)
        assert not server.stop(2.0), "a store was lost"
    assert given == [HASTY_CLOSE_SECONDS, HASTY_CLOSE_SECONDS]


def test_where_nothing_is_to_be_drained_adapters_have_all_of_it(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server(l2_adapter=({"type": "memory"},))
    given: list[float] = []
    monkeypatch.setattr(AdapterClient, "close", lambda client, seconds: given.append(seconds))
    assert server.stop(4.0)
    assert [2.0 < seconds <= 4.0 for seconds in given] == [True]
