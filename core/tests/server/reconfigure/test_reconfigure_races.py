"""Operators that get in each other's way, and servers that stop while something changes."""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress
from typing import Any

import pytest

from core.tests.injected import FAULT_INJECT, injected
from core.tests.server.changing_server import (
    CHUNKS,
    MEMORY,
    StartServer,
    nothing_is_left,
    prompt,
    recorded,
    state_of,
)
from core.tests.server.reconfigure.conftest import Gate
from core.tests.server.test_controller_faults import wait_for
from lmcache_core.app import setting_changes
from lmcache_core.app.l2_tier import RunningAdapter
from lmcache_core.app.open_l2 import open_eviction_policy
from lmcache_core.app.server import Server
from lmcache_core.builtin.lru import LeastRecentlyUsed
from lmcache_core.contracts.events import AdapterAdded, AdapterRemoved, SettingChanged
from lmcache_core.contracts.server_control import NoSuchAdapterError, NotNowError
from lmcache_core.controllers import adapter_removal
from lmcache_devkit.fake_engine import FakeEngine

OPERATORS, ACTIONS = 3, 40


# --- two operators


def test_who_removes_what_is_just_coming_has_the_last_word(start: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start()
    parts = server._parts
    add_adapter = parts.tiers.prefetch.add_adapter
    remover = threading.Thread(target=lambda: parts.adapters.remove("memory", 0.0, True), daemon=True)

    def add_slowly(client: Any) -> Any:
        remover.start()
        remover.join(0.3)
        return add_adapter(client)

    with recorded(server, monkeypatch) as events:
        monkeypatch.setattr(parts.tiers.prefetch, "add_adapter", add_slowly)
        parts.adapters.add(MEMORY)
        wait_for(lambda: state_of(server, "memory") == "removed")
        remover.join(10)
    assert parts.tiers.store.views() == {}
    assert not parts.tiers.store.active
    assert not parts.tiers.prefetch.active
    seen = [event for event in events if isinstance(event, AdapterAdded | AdapterRemoved)]
    assert [type(event) for event in seen] == [AdapterAdded, AdapterRemoved]


def test_no_two_adapters_have_one_name(start: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one comes between the opening of the first and its being taken in."""
    server = start()
    adapters = server._parts.adapters
    take_in = adapters._take_in
    names: list[str] = []

    def take_in_late(adapter: RunningAdapter) -> None:
        monkeypatch.setattr(adapters, "_take_in", take_in)
        names.append(adapters.add(MEMORY).name)
        take_in(adapter)

    monkeypatch.setattr(adapters, "_take_in", take_in_late)
    names.append(adapters.add(MEMORY).name)
    assert sorted(names) == ["memory", "memory-2"]


def test_a_setting_waits_for_the_one_before_it_and_not_for_ever(
    start: StartServer, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setting_changes, "TURN_SECONDS", 0.05)
    server = start()
    settings = server._parts.settings

    def open_late(*arguments: Any) -> Any:
        gate.wait()
        return open_eviction_policy(*arguments)

    monkeypatch.setattr(setting_changes, "open_eviction_policy", open_late)
    first = threading.Thread(target=lambda: settings.change({"eviction_policy": {"type": "LRU"}}), daemon=True)
    first.start()
    wait_for(lambda: settings._lock.locked())
    with pytest.raises(NotNowError, match="other settings are being changed; try again"):
        settings.change({"eviction_ratio": 0.5})
    gate.open.set()
    first.join(10)
    assert [each.name for each in settings.change({"eviction_ratio": 0.5})] == ["eviction_ratio"]


def operate(server: Server, seed: int, faults: list[BaseException]) -> None:
    """Random reconfigurations, as fast as possible."""
    dice, parts = random.Random(seed), server._parts
    policies = ("LRU", {"type": "LRU"})
    try:
        for _ in range(ACTIONS):
            with suppress(NotNowError, NoSuchAdapterError):
                name = dice.choice([state.name for state in parts.adapters.states()] or ["none"])
                match dice.randrange(8):
                    case 0 | 1:
                        parts.adapters.add(dice.choice((MEMORY, {**MEMORY, "eviction": {"eviction_policy": "LRU"}})))
                    case 2 | 3:
                        parts.adapters.remove(name, dice.choice((0.0, 0.1)), dice.random() < 0.5)
                    case 4:
                        dice.choice((parts.adapters.drain, parts.adapters.resume))(name)
                    case 5:
                        parts.settings.change({"eviction_policy": dice.choice(policies)})
                    case 6:
                        limits = {
                            "eviction_trigger_watermark": dice.choice((0.3, 0.8)),
                            "eviction_ratio": dice.random(),
                        }
                        parts.settings.change({**limits, "l2_store_max_backlog_gb": dice.choice((0.0001, 0.01))})
                    case 7:
                        parts.tiers.storage.clear(force=dice.random() < 0.5)
    except BaseException as fault:
        faults.append(fault)
        raise


def test_operators_who_do_not_agree(start: StartServer) -> None:
    server = start(MEMORY)
    parts, faults, hits = server._parts, list[BaseException](), 0
    operators = [
        threading.Thread(target=operate, args=(server, seed, faults), daemon=True) for seed in range(OPERATORS)
    ]
    for operator in operators:
        operator.start()
    with FakeEngine(server.info.engine_endpoint) as engine:
        turn = 0
        while any(operator.is_alive() for operator in operators):
            engine.store(prompt(turn % 5))
            tokens, request = prompt(turn * 7 % 5), f"r{turn}"
            if found := engine.lookup(tokens, request):
                read = engine.retrieve(tokens, request, 0, found * 16)
                if read is not None:  # what was cleared by force is found no more
                    assert read == [engine.content(tokens, chunk) for chunk in range(found)], "wrong bytes"
                    hits += found
            engine.end(request)
            turn += 1
    assert not faults
    assert hits
    for state in parts.adapters.states():
        with suppress(NoSuchAdapterError):  # its removal is just over
            parts.adapters.remove(state.name, 0.0, True)
    wait_for(lambda: not parts.tiers.l2.clients)
    assert (parts.tiers.store.views(), parts.tiers.store.active, parts.tiers.prefetch.active) == ({}, False, False)
    wait_for(lambda: not parts.tiers.eviction.changing)
    nothing_is_left(server)
    assert not [name for name in server.status()["threads"] if name.startswith("l2-") and name != "l2-completions"]


# --- what fails later


class CannotLearn(LeastRecentlyUsed):
    """Fails at it, later than anybody waits."""

    isolates_salts = True

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self._gate = gate

    def on_insert(self, slots: Any, facts: Any) -> None:
        self._gate.wait()
        raise RuntimeError("injected")


def test_a_policy_that_fails_later_is_taken_back_with_all_that_hung_on_it(
    start: StartServer, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    parts = server._parts
    with FakeEngine(server.info.engine_endpoint) as engine:
        engine.store(prompt(1))
    monkeypatch.setattr(setting_changes, "POLICY_SECONDS", 0.05)
    with monkeypatch.context() as patch, recorded(server, monkeypatch) as events:
        patch.setattr(setting_changes, "open_eviction_policy", lambda *arguments: CannotLearn(gate))
        changed = parts.settings.change({"eviction_policy": {"type": "LRU"}, "default_quota_gb": 1.0})
        assert {each.name: each.state for each in changed} == {
            "eviction_policy": "under way",
            "default_quota_gb": "applied",
        }
        gate.open.set()
        wait_for(lambda: parts.settings.running()["eviction_policy"] == "LRU")
        seen = [(event.name, event.after) for event in events if isinstance(event, SettingChanged)]
    assert sorted(seen[2:]) == [("default_quota_gb", "null"), ("eviction_policy", '"LRU"')]
    assert parts.settings.running()["default_quota_gb"] is None
    assert parts.tiers.quotas.default_bytes is None
    with pytest.raises(NotNowError, match="a default quota needs an eviction policy"):
        parts.settings.change({"default_quota_gb": 1.0})


# --- the server stops


def test_a_stop_while_an_adapter_drains_stores_what_waits(start: StartServer) -> None:
    slow = injected(delay=1.0, also={"delay_seconds": 0.1})
    server = start(slow, l2_store_max_backlog_gb=CHUNKS * 12288 / 2**30)
    store = server._parts.tiers.store
    with FakeEngine(server.info.engine_endpoint) as engine:
        engine.store(prompt(1))
        wait_for(lambda: store.views()[FAULT_INJECT].counts.in_flight > 0)
        assert store.views()[FAULT_INJECT].counts.waiting > 0
        server._parts.adapters.remove(FAULT_INJECT, 3600.0, False)
    assert server.stop(20.0)
    assert store.views()[FAULT_INJECT].counts.stored == CHUNKS


def test_an_adapter_that_lingers_holds_up_no_stop(start: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_removal, "LINGER_SECONDS", 0.1)
    server = start(injected(lost=1.0), MEMORY)
    with FakeEngine(server.info.engine_endpoint) as engine:
        engine.store(prompt(1))
        wait_for(lambda: server.status()["store"]["adapters"]["memory"]["stored"] == CHUNKS)
        server._parts.adapters.remove(FAULT_INJECT, 60.0, force=True)
        wait_for(lambda: state_of(server, FAULT_INJECT) == "lingering")
        assert server.status()["l1"]["quarantined"] == CHUNKS
        wait_for(lambda: server.status()["store"]["backlog_bytes"] == 0)
    started = time.monotonic()
    assert server.stop(60.0)
    assert time.monotonic() - started < 20


# --- what a removal says of itself


def test_drained_is_said_only_where_everything_got_there(
    start: StartServer, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The adapter has no room for what waited."""
    server = start({"type": "memory", "max_size_gb": 1e-6})
    parts = server._parts
    enqueue = parts.tiers.store._enqueue

    def enqueue_late(batch: Any) -> None:
        gate.wait()
        enqueue(batch)

    monkeypatch.setattr(parts.tiers.store, "_enqueue", enqueue_late)
    with FakeEngine(server.info.engine_endpoint) as engine:
        engine.store(prompt(1))
        parts.adapters.remove("memory", 30.0, False)
        gate.open.set()
        wait_for(lambda: state_of(server, "memory") == "removed")
    assert parts.adapters.state("memory").drained is False
    nothing_is_left(server)
