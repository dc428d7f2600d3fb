"""Conformance of the states that come with the coordinator, and what `--state` names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lmcache_client.errors import ConfigError
from lmcache_coordinator.states.sqlite import SqliteState
from lmcache_devkit import CoordinatorStateSuite
from lmcache_fleet.state import parse_state


class TestSqlite(CoordinatorStateSuite):
    offer = "sqlite"

    @pytest.fixture
    def settings(self, tmp_path: Path) -> Mapping[str, Any]:
        return {"address": str(tmp_path / "state.db")}


class TestMemory(CoordinatorStateSuite):
    offer = "memory"


@pytest.mark.parametrize(("before", "after"), [(36_000.0, 1_400.0), (1e6, 0.0), (1_010.5, 1_000.0)])
def test_a_lease_ends_with_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: float, after: float
) -> None:
    """Its clock begins anew, or the file is on another machine: a lease that ends later than one lasts is free then."""
    now = before
    monkeypatch.setattr("time.monotonic", lambda: now)
    state = SqliteState(str(tmp_path / "state.db"))
    assert state.acquire("leader", "a", 10.0)
    now = after
    assert state.acquire("leader", "b", 10.0)
    assert not state.acquire("leader", "a", 10.0), "b has it now"
    state.close()


@pytest.mark.parametrize(
    ("text", "name", "fields"),
    [
        ("memory", "memory", {}),
        ("state.db", "sqlite", {"address": "state.db"}),
        ("/var/lib/a:b.db", "sqlite", {"address": "/var/lib/a:b.db"}),
        ("sqlite:/a.db", "sqlite", {"address": "/a.db"}),
        ("etcd:http://a:1,http://b:1", "etcd", {"address": "http://a:1,http://b:1"}),
        ("redis://a:1/0", "redis", {"address": "//a:1/0"}),
        (
            '{"type": "etcd", "address": "http://a:1", "prefix": "x/"}',
            "etcd",
            {"address": "http://a:1", "prefix": "x/"},
        ),
    ],
)
def test_what_state_names(text: str, name: str, fields: Mapping[str, str]) -> None:
    assert parse_state(text) == (name, fields)


@pytest.mark.parametrize("text", ['{"type"', "{}", '{"type": 1}'])
def test_json_that_names_no_state_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--state"):
        parse_state(text)
