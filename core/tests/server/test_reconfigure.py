"""A running server whose adapters come and go and whose settings change, while engines store and load."""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from core.tests.injected import FAULT_INJECT, injected
from core.tests.server.changing_server import (
    CHUNKS,
    MEMORY,
    StartServer,
    nothing_is_left,
    prompt,
    read_back,
    recorded,
    servers_to_change,
    state_of,
    still_there,
    store_in_l2,
)
from core.tests.server.test_controller_faults import trip, wait_for
from lmcache_core.admin.reconfigure_port import NoSuchAdapterError, NotNowError
from lmcache_core.app import reconfigure, setting_changes
from lmcache_core.app.open_l2 import AdapterOpener
from lmcache_core.builtin.lru import LeastRecentlyUsed
from lmcache_core.contracts.events import AdapterAdded, AdapterRemoved, SettingChanged
from lmcache_core.controllers import adapter_removal
from lmcache_core.controllers.adapter_removal import AdapterRemoval
from lmcache_core.controllers.store import StoreController
from lmcache_core.controllers.store_queue import StoreJob
from lmcache_core.model.errors import ConfigError
from lmcache_core.testing import Fault, FaultInjectAdapter
from lmcache_core.testing.fake_engine import FakeEngine


@pytest.fixture
def start() -> Iterator[StartServer]:
    with servers_to_change() as start_server:
        yield start_server


def test_an_adapter_comes_serves_and_goes(start: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start()
    adapters = server._parts.adapters
    with recorded(server, monkeypatch) as events, FakeEngine(server.info.engine_endpoint) as engine:
        added = adapters.add({**MEMORY, "eviction": {"eviction_policy": "LRU"}})
        assert (added.name, added.index, added.state) == ("memory", 0, "serving")
        assert added.eviction_policy == "LRU"
        assert {"l2-eviction-memory", "l2-listing-memory"} <= server.status()["threads"].keys()
        store_in_l2(engine, server, prompt(1))
        assert read_back(engine, prompt(1), "a") == CHUNKS
        removed = adapters.remove("memory", 5.0, False)
        assert removed.seconds_left is not None
        wait_for(lambda: state_of(server, "memory") == "removed")
        engine.scheduler.clear()
        assert read_back(engine, prompt(1), "b") == 0
        again = adapters.add(MEMORY)
        assert (again.name, again.index) == ("memory", 1), "a number is never used twice, a name is"
        assert adapters.state("memory").state == "serving"
        nothing_is_left(server)
    assert [event for event in events if isinstance(event, AdapterAdded | AdapterRemoved)] == [
        AdapterAdded("memory", "memory"),
        AdapterRemoved("memory", True),
        AdapterAdded("memory", "memory"),
    ]
    threads = server.status()["threads"]
    assert not [name for name in threads if name.startswith(("l2-eviction", "l2-listing", "l2-removal"))]
    assert [row["name"] for row in server.status()["l2"]] == ["memory"]


def test_coming_and_going_leaves_nothing_behind(start: StartServer) -> None:
    server = start()
    adapters = server._parts.adapters

    def come_and_go() -> tuple[int, set[str]]:
        adapters.add({**MEMORY, "eviction": {"eviction_policy": "LRU"}})
        adapters.remove("memory", 1.0, False)
        wait_for(lambda: state_of(server, "memory") == "removed")
        gc.collect()
        return len(os.listdir("/proc/self/fd")), set(server.status()["threads"])

    before = come_and_go()
    for _ in range(5):
        after = come_and_go()
    wait_for(lambda: len(os.listdir("/proc/self/fd")) <= before[0])  # the last one's may be closed a moment later
    assert after[1] == before[1]


def test_under_load_every_byte_is_right(start: StartServer) -> None:
    """Two engines, and an operator who does not leave them alone."""
    slow = injected(delay=0.5, error=0.05, also={"delay_seconds": 0.005})
    server = start(MEMORY, slow)
    adapters = server._parts.adapters
    stop = threading.Event()
    faults: list[BaseException] = []
    hits = [0, 0]

    def work(number: int) -> None:
        try:
            with FakeEngine(server.info.engine_endpoint, salt=f"s{number}") as engine:
                turn = 0
                while not stop.is_set():
                    tokens = prompt(1000 * number + turn % 7)
                    engine.store(tokens)
                    if turn % 3 == 0:
                        engine.scheduler.clear()
                    hits[number] += read_back(engine, tokens, f"{number}-{turn}")
                    turn += 1
        except BaseException as error:
            faults.append(error)
            raise

    engines = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(2)]
    for engine in engines:
        engine.start()
    for turn in range(6):
        for name in [state.name for state in adapters.states()]:
            adapters.remove(name, 0.2, force=turn % 3 == 2)
        adapters.add(MEMORY)
        drained = adapters.add(slow).name
        adapters.drain(drained)
        server._parts.settings.change(
            {"eviction_ratio": 0.1 + turn / 100, "l2_store_max_backlog_gb": 0.001 * (turn + 1)}
        )
        time.sleep(0.05)
        adapters.resume(drained)
    stop.set()
    for engine in engines:
        engine.join(20)
    assert not faults
    assert min(hits) > 0
    wait_for(lambda: all(state.state == "serving" for state in adapters.states()))
    nothing_is_left(server)


def test_a_stalled_adapter_is_removed_within_its_deadline(start: StartServer) -> None:
    server = start(injected(stall=1.0), MEMORY)
    adapters = server._parts.adapters
    with FakeEngine(server.info.engine_endpoint) as engine:
        engine.store(prompt(1))
        wait_for(lambda: server.status()["store"]["adapters"]["memory"]["stored"] == CHUNKS)
        assert adapters.state(FAULT_INJECT).objects_left == CHUNKS
        engine.scheduler.clear()
        begun = time.monotonic()
        adapters.remove(FAULT_INJECT, 0.3, False)
        wait_for(lambda: state_of(server, FAULT_INJECT) == "removed")
        assert time.monotonic() - begun < 8
        gone = adapters.state(FAULT_INJECT)
        assert (gone.drained, gone.objects_left, gone.lent_bytes) == (False, 0, 0)
        assert gone.given_up == CHUNKS
        nothing_is_left(server)
        engine.scheduler.clear()
        assert read_back(engine, prompt(1), "next") == CHUNKS


def test_a_lookup_goes_on_with_another_adapter_when_its_own_is_removed(start: StartServer) -> None:
    server = start(injected(), MEMORY)
    faulty = server._parts.ports[0].adapter
    assert isinstance(faulty, FaultInjectAdapter)
    with FakeEngine(server.info.engine_endpoint) as engine:
        store_in_l2(engine, server, prompt(1))
        for verb in ("lookup", "load"):
            faulty.plan.change(verb, {Fault.STALL: 1.0})
        key = engine.key(prompt(1), "r", 0, CHUNKS * 16, of_worker=False)
        found: list[int] = []
        asking = threading.Thread(target=lambda: found.append(engine.scheduler.lookup_hits(key)), daemon=True)
        asking.start()
        wait_for(lambda: server._parts.ports[0].unanswered > 0)
        server._parts.adapters.remove(FAULT_INJECT, 0.0, False)
        asking.join(10)
        assert found == [CHUNKS]
        assert engine.retrieve(prompt(1), "r") == [engine.content(prompt(1), chunk) for chunk in range(CHUNKS)]
        engine.end("r")
        wait_for(lambda: state_of(server, FAULT_INJECT) == "removed")
        nothing_is_left(server)


def test_what_an_adapter_keeps_stays_apart_until_it_lets_go(
    start: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter_removal, "LINGER_SECONDS", 0.1)
    server = start(injected(lost=1.0))
    adapters, port = server._parts.adapters, server._parts.ports[0]
    with FakeEngine(server.info.engine_endpoint) as engine:
        engine.store(prompt(1))
        wait_for(lambda: port.lent_bytes > 0)
        adapters.remove(FAULT_INJECT, 60.0, force=True)
        wait_for(lambda: state_of(server, FAULT_INJECT) == "lingering")
        assert server.status()["l1"]["quarantined"] == CHUNKS
        assert adapters.state(FAULT_INJECT).lent_bytes > 0
        assert server.health() == (True, "")
        assert adapters.add(injected()).name == f"{FAULT_INJECT}-2", "the name is not free before it is gone"
        engine.scheduler.clear(True)
        assert isinstance(port.adapter, FaultInjectAdapter)
        port.adapter.find()
        wait_for(lambda: state_of(server, FAULT_INJECT) == "removed")
        nothing_is_left(server)


def test_an_adapter_that_blocks_its_close_blocks_nobody(start: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start(MEMORY)
    adapters, let_go = server._parts.adapters, threading.Event()
    close = server._parts.ports[0].adapter.close
    monkeypatch.setattr(server._parts.ports[0].adapter, "close", lambda seconds: (let_go.wait(30), close(seconds)))
    adapters.remove("memory", 1.0, False)
    wait_for(lambda: state_of(server, "memory") == "closing")
    assert adapters.add(MEMORY).name == "memory-2"
    with pytest.raises(NotNowError, match="'memory' is being removed"):
        adapters.drain("memory")
    with FakeEngine(server.info.engine_endpoint) as engine:
        store_in_l2(engine, server, prompt(1))
        assert read_back(engine, prompt(1), "a") == CHUNKS
    let_go.set()
    wait_for(lambda: state_of(server, "memory") == "removed")


@pytest.mark.parametrize("method", ["_is_drained", "_made", "_lets_go"])
def test_a_removal_that_trips_goes_on(start: StartServer, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    server = start(MEMORY)
    tripped = trip(AdapterRemoval, method, monkeypatch)
    server._parts.adapters.remove("memory", 1.0, False)
    wait_for(lambda: state_of(server, "memory") == "removed")
    assert tripped
    assert server._parts.ports == ()


def test_more_force_ends_a_removal_sooner(start: StartServer) -> None:
    server = start(injected(stall=1.0))
    with FakeEngine(server.info.engine_endpoint) as engine:
        engine.store(prompt(1))
        adapters = server._parts.adapters
        adapters.remove(FAULT_INJECT, 3600.0, False)
        wait_for(lambda: adapters.state(FAULT_INJECT).objects_left == CHUNKS)
        assert state_of(server, FAULT_INJECT) == "draining"
        left = adapters.remove(FAULT_INJECT, 60.0, False).seconds_left
        assert left is not None
        assert left <= 60.0
        adapters.remove(FAULT_INJECT, 3600.0, True)
        wait_for(lambda: state_of(server, FAULT_INJECT) == "removed")
    nothing_is_left(server)


def test_an_adapter_can_be_gone_before_its_slots_are_back(start: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The port hears first that the buffers were let go; the store controller, which holds the slots, may be slow."""
    let_go, release = threading.Event(), StoreController._release

    def release_late(self: StoreController, job: StoreJob) -> None:
        let_go.wait(30)
        release(self, job)

    server = start(injected(stall=1.0))
    monkeypatch.setattr(StoreController, "_release", release_late)
    with FakeEngine(server.info.engine_endpoint) as engine:
        engine.store(prompt(1))
        wait_for(lambda: server._parts.ports[0].lent_bytes > 0)
        server._parts.adapters.remove(FAULT_INJECT, 0.0, True)
        wait_for(lambda: state_of(server, FAULT_INJECT) == "removed")
        assert server._parts.adapters.state(FAULT_INJECT).lent_bytes == 0
        assert still_there(server)["quarantined"] == CHUNKS
    soon = threading.Timer(0.1, let_go.set)
    soon.start()
    nothing_is_left(server)
    soon.join()


def test_the_server_stops_in_the_middle_of_a_removal(start: StartServer) -> None:
    server = start(injected(stall=1.0), MEMORY)
    with FakeEngine(server.info.engine_endpoint) as engine:
        engine.store(prompt(1))
        server._parts.adapters.remove(FAULT_INJECT, 3600.0, False)
        wait_for(lambda: server.status()["store"]["adapters"]["memory"]["stored"] == CHUNKS)
    begun = time.monotonic()
    assert not server.stop(0.2)
    assert time.monotonic() - begun < 10
    with pytest.raises(NotNowError, match="the server is stopping"):
        server._parts.adapters.add(MEMORY)


# --- what cannot be opened


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"type": "memory", "max_size_gbb": 1}, "adapter: no field is called 'max_size_gbb'"),
        ({"type": "memory", "max_size_gb": -1}, "adapter: field 'max_size_gb' is -1"),
        ({"type": "memroy"}, "adapter: no L2 adapter is called 'memroy'"),
        ({"type": "memory", "eviction": {"eviction_policy": "LRUU"}}, "adapter.eviction.eviction_policy"),
    ],
)
def test_settings_are_checked_as_at_the_start(start: StartServer, values: dict[str, Any], says: str) -> None:
    server = start()
    with pytest.raises(ConfigError, match=says):
        server._parts.adapters.add(values)
    assert server._parts.ports == ()
    with pytest.raises(NoSuchAdapterError, match="no L2 adapter is called 'memory'; there are: none"):
        server._parts.adapters.drain("memory")


def test_an_adapter_that_does_not_open_in_time_is_closed_when_it_does(
    start: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    let_go, closed = threading.Event(), threading.Event()
    really_open = AdapterOpener.open

    def open_late(self: AdapterOpener, *arguments: Any) -> Any:
        let_go.wait(30)
        adapter = really_open(self, *arguments)
        close = adapter.port.adapter.close

        def close_and_say(seconds: float) -> None:
            close(seconds)
            closed.set()

        monkeypatch.setattr(adapter.port.adapter, "close", close_and_say)
        return adapter

    monkeypatch.setattr(AdapterOpener, "open", open_late)
    monkeypatch.setattr(reconfigure, "OPEN_SECONDS", 0.05)
    with pytest.raises(NotNowError, match="adapter 'memory' was not opened within 0 s"):
        server._parts.adapters.add(MEMORY)
    let_go.set()
    assert closed.wait(10)
    assert server._parts.ports == ()


def test_a_change_is_one_line_in_the_log(start: StartServer, caplog: pytest.LogCaptureFixture) -> None:
    server = start(MEMORY)
    with caplog.at_level(logging.INFO):
        server._parts.adapters.add(MEMORY)
        server._parts.adapters.remove("memory-2", 1.0, False)
        wait_for(lambda: state_of(server, "memory-2") == "removed")
        server._parts.settings.change({"eviction_ratio": 0.3})
        told = ("adapter added", "adapter removed", "setting changed")
        wait_for(lambda: all(each in caplog.text for each in told))
    lines = [record.getMessage() for record in caplog.records]
    for word in (*told, "was added", "was removed", "was changed"):
        assert len([line for line in lines if word in line]) == (word in told), lines


def test_pins_leave_room_below_the_watermark_at_any_time(start: StartServer) -> None:
    server = start(MEMORY)
    with pytest.raises(ConfigError, match=r"--l1-pin-max-ratio 0.25 is not below --eviction-trigger-watermark 0.25"):
        server._parts.settings.change({"eviction_trigger_watermark": 0.25, "eviction_ratio": 0.9})
    assert (server._parts.eviction._watermark, server._parts.eviction._ratio) == (0.8, 0.2)
    server._parts.settings.change({"eviction_trigger_watermark": 0.26})
    assert server._parts.eviction._watermark == 0.26


def test_there_is_a_most_of_adapters(start: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconfigure, "ADAPTERS_MAX", 2)
    server = start(MEMORY)
    server._parts.adapters.add(MEMORY)
    with pytest.raises(NotNowError, match="there are 2 L2 adapters, which is the most; remove one first"):
        server._parts.adapters.add(MEMORY)


# --- settings


def test_settings_apply_where_they_are_used(start: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start(MEMORY)
    parts = server._parts
    with recorded(server, monkeypatch) as events:
        changed = parts.settings.change(
            {
                "eviction_trigger_watermark": 0.5,
                "eviction_ratio": 0.3,
                "l1_prefetch_max_ratio": 0.25,
                "lookup_timeout_seconds": 3,
                "l2_timeout_seconds": 4.5,
                "l2_store_max_backlog_gb": 0.01,
                "l2_store_max_backlog_seconds": 7,
                "l2_store_drop": "oldest",
                "l2_prefetch_max_in_flight": 2,
                "l1_allocation_wait_ms": 1,
                "reject_unsalted": True,
                "eviction_policy": {"type": "LRU"},
            }
        )
    assert {each.state for each in changed} == {"applied"}
    assert [event.name for event in events if isinstance(event, SettingChanged)] == [each.name for each in changed]
    assert SettingChanged("eviction_ratio", "0.2", "0.3") in events
    wait_for(lambda: server.status()["prefetch"]["max_in_flight"] == 2)
    status = server.status()
    assert status["prefetch"]["l1_max_bytes"] == parts.arena.size_bytes // 4
    wait_for(lambda: server.status()["store"]["backlog_max_bytes"] == int(0.01 * 2**30))
    assert (parts.eviction._watermark, parts.eviction._ratio) == (0.5, 0.3)
    assert parts.storage.allocation_wait_seconds == 0.001
    assert not parts.gate.admits("")
    assert [port.timeout_seconds for port in parts.ports] == [4.5]
    assert parts.adapters.add(MEMORY).name == "memory-2"
    assert [port.timeout_seconds for port in parts.ports] == [4.5, 4.5]
    assert parts.settings.changed()["l2_adapter"] == (MEMORY, MEMORY)
    assert parts.settings.running()["l2_store_drop"] == "oldest"
    assert parts.settings.change({"eviction_ratio": 0.3}) == []


@pytest.mark.parametrize(
    ("values", "error", "says"),
    [
        ({"eviction_ratio": 1.5}, ConfigError, "settings: field 'eviction_ratio' is 1.5"),
        ({"eviction_ratio": "0.5"}, ConfigError, "settings: field 'eviction_ratio' is '0.5'"),
        ({"eviction_policy": "LRUU"}, ConfigError, "eviction_policy: no eviction policy is called 'LRUU'"),
        ({"l2_store_policy": {"type": "default", "x": 1}}, ConfigError, "takes no settings; leave out 'x'"),
        ({"evictionratio": 0.5}, ConfigError, "no setting is called 'evictionratio'; did you mean 'eviction_ratio'"),
        ({"port": 1}, NotNowError, "'port' cannot be changed while the server runs: it needs a restart"),
        ({"default_quota_gb": 1.0}, NotNowError, "a default quota needs an eviction policy"),
    ],
)
def test_all_of_a_change_or_none(start: StartServer, values: dict[str, Any], error: type[Exception], says: str) -> None:
    server = start()
    before = server._parts.settings.running()
    with pytest.raises(error, match=says):
        server._parts.settings.change({"l1_prefetch_max_ratio": 0.1, **values})
    assert server._parts.settings.running() == before
    assert server.status()["prefetch"]["l1_max_bytes"] == server._parts.arena.size_bytes // 2


class CannotLearn(LeastRecentlyUsed):
    def on_insert(self, slots: Any, facts: Any) -> None:
        raise RuntimeError("injected")


def test_a_policy_that_cannot_learn_changes_nothing(start: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start()
    parts = server._parts
    with FakeEngine(server.info.engine_endpoint) as engine:
        engine.store(prompt(1))
    monkeypatch.setattr(setting_changes, "open_eviction_policy", lambda *arguments: CannotLearn())
    before = parts.eviction._policy
    with pytest.raises(NotNowError, match="failed to learn what L1 holds, and nothing is changed"):
        parts.settings.change({"eviction_policy": {"type": "LRU"}, "eviction_ratio": 0.5})
    assert (parts.eviction._policy, parts.settings.running()["eviction_ratio"]) == (before, 0.2)
    assert server.status()["policies"]["eviction"] == "LRU"


class LearnsSlowly(LeastRecentlyUsed):
    """Takes longer than a caller waits, and fails in the end if it is told to."""

    go_on = threading.Event()
    fails = False

    def on_insert(self, slots: Any, facts: Any) -> None:
        self.go_on.wait(30)
        if self.fails:
            raise RuntimeError("injected")
        super().on_insert(slots, facts)


@pytest.mark.parametrize("fails", [False, True])
def test_a_policy_that_takes_long_takes_over_later_if_at_all(
    start: StartServer, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    server = start()
    parts = server._parts
    with FakeEngine(server.info.engine_endpoint) as engine:
        engine.store(prompt(1))
    LearnsSlowly.go_on.clear()
    monkeypatch.setattr(LearnsSlowly, "fails", fails)
    monkeypatch.setattr(setting_changes, "open_eviction_policy", lambda *arguments: LearnsSlowly())
    monkeypatch.setattr(setting_changes, "POLICY_SECONDS", 0.1)
    (changed,) = parts.settings.change({"eviction_policy": {"type": "LRU"}})
    assert changed.state == "under way"
    with pytest.raises(NotNowError, match="the eviction policy is being changed"):
        parts.settings.change({"eviction_ratio": 0.5})
    LearnsSlowly.go_on.set()
    wait_for(lambda: not parts.eviction.changing)
    assert isinstance(parts.eviction._policy, LearnsSlowly) is not fails
    assert parts.settings.running()["eviction_policy"] == ("LRU" if fails else {"type": "LRU"})
