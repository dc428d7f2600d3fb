"""Settings change while a server runs: all of a request or none, and policies take over once they know what L1 holds."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from core.tests.server.changing_server import MEMORY, StartServer, prompt, recorded
from core.tests.server.test_controller_faults import wait_for
from lmcache_client.errors import ConfigError
from lmcache_core.app import setting_changes
from lmcache_core.builtin.lru import LeastRecentlyUsed
from lmcache_core.contracts.events import SettingChanged
from lmcache_core.contracts.server_control import NotNowError
from lmcache_devkit.fake_engine import FakeEngine


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
    assert status["prefetch"]["l1_max_bytes"] == parts.tiers.arena.size_bytes // 4
    wait_for(lambda: server.status()["store"]["backlog_max_bytes"] == int(0.01 * 2**30))
    assert (parts.tiers.eviction._watermark, parts.tiers.eviction._ratio) == (0.5, 0.3)
    assert parts.tiers.storage.allocation_wait_seconds == 0.001
    assert not parts.engine_port.gate.admits("")
    assert [port.timeout_seconds for port in parts.tiers.l2.clients] == [4.5]
    assert parts.adapters.add(MEMORY).name == "memory-2"
    assert [port.timeout_seconds for port in parts.tiers.l2.clients] == [4.5, 4.5]
    shown = {row.name: row for row in parts.settings.shown()}
    assert shown["l2_adapter"].value == [MEMORY, MEMORY]
    ratio = shown["eviction_ratio"]
    assert (ratio.value, ratio.source, ratio.given_by, ratio.default) == (0.3, "runtime", "admin API", 0.2)
    assert (shown["l1_size_gb"].value, shown["chunk_size"].given_by) == (1 / 16, "--chunk-size")
    assert parts.settings.running()["l2_store_drop"] == "oldest"
    assert parts.settings.change({"eviction_ratio": 0.3}) == []


@pytest.mark.parametrize(
    ("values", "error", "says"),
    [
        ({"eviction_ratio": 1.5}, ConfigError, "settings: field 'eviction_ratio' is 1.5"),
        ({"eviction_ratio": "0.5"}, ConfigError, "settings: field 'eviction_ratio' is '0.5'"),
        ({"eviction_policy": "LRUU"}, ConfigError, "eviction_policy: no eviction policy is called 'LRUU'"),
        ({"l2_store_policy": {"type": "default", "x": 1}}, ConfigError, "takes no settings; leave out 'x'"),
        ({"evictionratio": 0.5}, ConfigError, "no field is called 'evictionratio'; did you mean 'eviction_ratio'"),
        ({"port": 1}, ConfigError, "no field is called 'port'; known: eviction_policy, "),
        ({"default_quota_gb": 1.0}, NotNowError, "a default quota needs an eviction policy"),
    ],
)
def test_all_of_a_change_or_none(start: StartServer, values: dict[str, Any], error: type[Exception], says: str) -> None:
    server = start()
    before = server._parts.settings.running()
    with pytest.raises(error, match=says):
        server._parts.settings.change({"l1_prefetch_max_ratio": 0.1, **values})
    assert server._parts.settings.running() == before
    assert server.status()["prefetch"]["l1_max_bytes"] == server._parts.tiers.arena.size_bytes // 2


def test_pins_leave_room_below_the_watermark_at_any_time(start: StartServer) -> None:
    server = start(MEMORY)
    with pytest.raises(ConfigError, match=r"--l1-pin-max-ratio 0.25 is not below --eviction-trigger-watermark 0.25"):
        server._parts.settings.change({"eviction_trigger_watermark": 0.25, "eviction_ratio": 0.9})
    assert (server._parts.tiers.eviction._watermark, server._parts.tiers.eviction._ratio) == (0.8, 0.2)
    server._parts.settings.change({"eviction_trigger_watermark": 0.26})
    assert server._parts.tiers.eviction._watermark == 0.26


class CannotLearn(LeastRecentlyUsed):
    def on_insert(self, slots: Any, facts: Any) -> None:
        raise RuntimeError("injected")


def test_a_policy_that_cannot_learn_changes_nothing(start: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start()
    parts = server._parts
    with FakeEngine(server.info.engine_endpoint) as engine:
        engine.store(prompt(1))
    monkeypatch.setattr(setting_changes, "open_eviction_policy", lambda *arguments: CannotLearn())
    before = parts.tiers.eviction.guarded.policy
    with pytest.raises(NotNowError, match="failed to learn what L1 holds, and nothing is changed"):
        parts.settings.change({"eviction_policy": {"type": "LRU"}, "eviction_ratio": 0.5})
    assert (parts.tiers.eviction.guarded.policy, parts.settings.running()["eviction_ratio"]) == (before, 0.2)
    assert server.status()["policies"]["eviction"] == "LRU"


class LearnsSlowly(LeastRecentlyUsed):
    """Takes longer than a caller waits, and fails in the end on request."""

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
    wait_for(lambda: not parts.tiers.eviction.changing)
    assert isinstance(parts.tiers.eviction.guarded.policy, LearnsSlowly) is not fails
    assert parts.settings.running()["eviction_policy"] == ("LRU" if fails else {"type": "LRU"})
