"""The keys of an adapter are listed through its client, also while it is closed."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from core.tests.controllers.adapter_harness import AdapterHarness
from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_core.model.results import KeyPage
from lmcache_devkit.cue_adapter import CueAdapter
from lmcache_devkit.fake_clock import FakeClock


@pytest.mark.parametrize("answer", [None, "page", OSError("no")])
def test_a_listing_that_is_none_is_said_so(
    harness: AdapterHarness, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    def list_keys(cursor: str | None, limit: int) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(harness.adapter, "list_keys", list_keys)
    assert harness.client.list_keys(None, 10) is None


def test_an_adapter_is_not_closed_while_it_lists_its_keys() -> None:
    began, goes_on, steps = threading.Event(), threading.Event(), list[str]()

    class Lister(CueAdapter):
        def list_keys(self, cursor: str | None, limit: int) -> KeyPage:
            began.set()
            assert goes_on.wait(10)
            steps.append("listed")
            return KeyPage((), None)

        def close(self, deadline_seconds: float) -> None:
            steps.append("closed")
            super().close(deadline_seconds)

    adapter = Lister()
    client = AdapterClient(0, "lister", adapter, adapter.capabilities, FakeClock(), 30.0)
    lister = threading.Thread(target=client.list_keys, args=(None, 5))
    lister.start()
    assert began.wait(10)
    closer = threading.Thread(target=client.close, args=(10.0,))
    closer.start()
    while not client._closing:
        time.sleep(0.001)
    assert client.list_keys(None, 5) is None
    goes_on.set()
    for thread in (lister, closer):
        thread.join(10)
    assert steps == ["listed", "closed"]


def test_a_listing_that_does_not_end_is_not_waited_for_longer(caplog: pytest.LogCaptureFixture) -> None:
    goes_on = threading.Event()

    class Lister(CueAdapter):
        def list_keys(self, cursor: str | None, limit: int) -> KeyPage:
            goes_on.wait(10)
            return KeyPage((), None)

    adapter = Lister()
    client = AdapterClient(0, "lister", adapter, adapter.capabilities, FakeClock(), 30.0)
    lister = threading.Thread(target=client.list_keys, args=(None, 5))
    lister.start()
    while not client._listings:
        time.sleep(0.001)
    client.close(0.01)
    assert "l2 adapter is closed while it lists its keys adapter=lister" in caplog.text
    goes_on.set()
    lister.join(10)
