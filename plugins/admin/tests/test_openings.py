"""Adapters and policies that take too long to open: callers go on, and what opens later is closed."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from core.tests.server.changing_server import MEMORY, StartServer
from core.tests.server.reconfigure.conftest import Gate, gate, slow_opening, start
from core.tests.server.test_controller_faults import wait_for
from lmcache_admin import openings
from lmcache_admin.openings import Openings
from lmcache_admin.service import AdminService
from lmcache_core.app import setting_changes
from lmcache_core.app.offer_specs import OfferSpec
from lmcache_core.app.open_l2 import AdapterOpener
from lmcache_core.contracts.server_control import NotNowError
from plugins.admin.tests.stand_ins import parts

__all__ = ["gate", "slow_opening", "start"]


def test_an_adapter_that_does_not_open_in_time_is_closed_when_it_does(
    start: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    resume, closed = threading.Event(), threading.Event()
    really_open = AdapterOpener.open

    def open_late(self: AdapterOpener, *arguments: Any) -> Any:
        resume.wait(30)
        adapter = really_open(self, *arguments)
        close = adapter.client.adapter.close

        def close_and_say(seconds: float) -> None:
            close(seconds)
            closed.set()

        monkeypatch.setattr(adapter.client.adapter, "close", close_and_say)
        return adapter

    monkeypatch.setattr(AdapterOpener, "open", open_late)
    with pytest.raises(NotNowError, match="adapter 'memory' was not opened within 0 s"):
        server._parts.adapters.add(MEMORY, Openings().within(0.05))
    resume.set()
    assert closed.wait(10)
    assert server._parts.tiers.l2.clients == ()


def test_the_name_of_what_never_opens_stays_taken_until_it_does(
    start: StartServer, slow_opening: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    adapters, opening = server._parts.adapters, Openings().within(0.05)
    for name in ("memory", "memory-2"):
        with pytest.raises(NotNowError, match=f"adapter '{name}' was not opened within 0 s and was abandoned"):
            adapters.add({**MEMORY, "eviction": {"eviction_policy": "LRU"}}, opening)
    slow_opening.open.set()
    wait_for(lambda: len(slow_opening.came) == 2 and not adapters._opening)
    assert adapters.add(MEMORY).name == "memory"


def test_what_never_opens_cannot_be_asked_for_again_and_again(
    start: StartServer, slow_opening: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openings, "OPENINGS_MAX", 2)
    server, opening = start(), Openings().within(0.05)
    for _ in range(2):
        with pytest.raises(NotNowError, match="was abandoned"):
            server._parts.adapters.add(MEMORY, opening)
    with pytest.raises(
        NotNowError, match="2 are being opened, which is the most: adapter 'memory', adapter 'memory-2'"
    ):
        server._parts.adapters.add(MEMORY, opening)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("eviction_policy", "eviction policy"),
        ("l2_store_policy", "store policy"),
        ("l2_prefetch_policy", "prefetch policy"),
    ],
)
def test_a_policy_that_never_opens_blocks_nothing(
    start: StartServer, gate: Gate, monkeypatch: pytest.MonkeyPatch, name: str, says: str
) -> None:
    server = start()
    settings = server._parts.settings
    before = settings.running()
    monkeypatch.setattr(setting_changes, "open_eviction_policy", lambda *arguments: gate.wait())
    monkeypatch.setattr(OfferSpec, "open_as", lambda *arguments: gate.wait())
    other = {"eviction_policy": {"type": "LRU"}}.get(name) or {"type": str(before[name])}
    with pytest.raises(NotNowError, match=f"{says} '{other['type']}' was not opened within 0 s and was abandoned"):
        settings.change({name: other, "eviction_ratio": 0.5}, Openings().within(0.05))
    assert settings.running() == before
    assert [each.name for each in settings.change({"eviction_ratio": 0.5})] == ["eviction_ratio"]


def test_a_stop_while_an_adapter_opens_does_not_wait_for_it(start: StartServer, slow_opening: Gate) -> None:
    server, service = start(), AdminService("127.0.0.1", 0, None, parts())
    messages: list[str] = []

    def add() -> None:
        with pytest.raises(NotNowError) as refusal:
            server._parts.adapters.add(MEMORY, service._parts.openings.within(60.0))
        messages.append(str(refusal.value))

    adding = threading.Thread(target=add, daemon=True)
    adding.start()
    wait_for(lambda: "memory" in server._parts.adapters._opening)
    service.stop(1.0)
    assert server.stop(1.0)
    adding.join(5)
    assert messages == ["the server is stopping"]
    with pytest.raises(NotNowError, match="the server is stopping"):
        service._parts.openings.within(60.0)("another", object, print)
    service.close()
