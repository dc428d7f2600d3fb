"""`lmcache adapters` and `lmcache config set`, against an API with stand-ins behind it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from lmcache_admin.service import AdminService
from lmcache_core.app.cli import main
from lmcache_core.contracts.server_control import NoSuchAdapterError, Opening
from lmcache_http.admin_api.changes import AdapterState, ChangedSetting
from plugins.admin.tests.conversation import running

Captured = pytest.CaptureFixture[str]


class StandInAdapters:
    """One adapter that is called `memory`, until it is removed: that takes two questions."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.left = 2
        self.doing = "serving"

    def clients(self) -> list[Any]:
        return []

    def _state(self) -> AdapterState:
        return AdapterState(
            name="memory",
            type="memory",
            index=3,
            state=self.doing,  # type: ignore[arg-type]
            healthy=self.doing == "serving",
            objects_left=self.left,
            bytes_left=0,
            jobs_in_flight=0,
            borrowed_bytes=0,
            seconds_left=None,
            drained=None,
            abandoned=7 if self.doing == "removed" else 0,
            eviction_policy=None,
            settings={},
        )

    def states(self) -> list[AdapterState]:
        return [self._state()]

    def state(self, name: str) -> AdapterState:
        if name != "memory":
            raise NoSuchAdapterError(f"no L2 adapter is called '{name}'; there are: memory")
        self.left -= 1
        if self.doing == "removing" and self.left == 0:
            self.doing = "removed"
        return self._state()

    def add(self, values: Mapping[str, Any], opening: Opening) -> AdapterState:
        self.calls.append(("add", dict(values)))
        return self._state()

    def drain(self, name: str) -> AdapterState:
        self.calls.append(("drain", name))
        self.doing = "draining"
        return self._state()

    def resume(self, name: str) -> AdapterState:
        self.calls.append(("resume", name))
        self.doing = "serving"
        return self._state()

    def remove(self, name: str, deadline_seconds: float, force: bool) -> AdapterState:
        self.calls.append(("remove", name, deadline_seconds, force))
        self.doing = "removing"
        return self._state()


class StandInSettings:
    def __init__(self) -> None:
        self.given: dict[str, Any] = {}

    def running(self) -> Mapping[str, Any]:
        return {"eviction_ratio": 0.2, "default_quota_gb": None, "eviction_policy": "LRU", "reject_unsalted": False}

    def change(self, values: Mapping[str, Any], opening: Opening) -> list[ChangedSetting]:
        self.given = dict(values)
        return [ChangedSetting(name=name, before=0.2, after=value, state="under way") for name, value in values.items()]


@pytest.fixture
def adapters() -> StandInAdapters:
    return StandInAdapters()


@pytest.fixture
def settings() -> StandInSettings:
    return StandInSettings()


@pytest.fixture
def api(adapters: StandInAdapters, settings: StandInSettings) -> Iterator[AdminService]:
    with running(adapters=adapters, settings=settings) as server:
        yield server


def test_list_and_add(api: AdminService, adapters: StandInAdapters, capsys: Captured, tmp_path: Path) -> None:
    assert main(["adapters", "list", "--url", api.http.endpoint]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["INDEX", "NAME", "TYPE", "STATE", "HEALTHY", "OBJECTS", "LEFT", "BYTES", "LEFT", "JOBS"]
    assert row.split() == ["3", "memory", "memory", "serving", "yes", "2", "0", "0"]
    assert main(["adapters", "add", '{"type": "memory", "max_size_gb": 1}', "--url", api.http.endpoint]) == 0
    assert adapters.calls == [("add", {"type": "memory", "max_size_gb": 1})]
    assert capsys.readouterr().out.startswith("adapter 'memory' is in use\n")
    (tmp_path / "adapter.json").write_text('{"type": "memory"}')
    assert main(["adapters", "add", f"@{tmp_path}/adapter.json", "--url", api.http.endpoint]) == 0
    assert adapters.calls[1:] == [("add", {"type": "memory"})]
    assert main(["adapters", "add", f"@{tmp_path}/none", "--url", api.http.endpoint]) == 2
    assert "none: cannot be read: No such file or directory" in capsys.readouterr().err


def test_drain_waits_until_nothing_is_left(api: AdminService, adapters: StandInAdapters, capsys: Captured) -> None:
    assert main(["adapters", "drain", "memory", "--wait", "--json", "--url", api.http.endpoint]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["objects_left"], answer["state"]) == (0, "draining")
    assert main(["adapters", "resume", "memory", "--url", api.http.endpoint]) == 0
    assert "adapter 'memory' takes stores" in capsys.readouterr().out
    assert adapters.calls == [("drain", "memory"), ("resume", "memory")]


def test_remove_waits_until_it_is_gone(api: AdminService, adapters: StandInAdapters, capsys: Captured) -> None:
    flags = ["--deadline-seconds", "2.5", "--force", "--wait"]
    assert main(["adapters", "remove", "memory", *flags, "--url", api.http.endpoint]) == 0
    shown = capsys.readouterr().out
    assert "adapter 'memory' was removed" in shown
    assert "7 objects were under way, and were abandoned" in shown
    assert adapters.calls == [("remove", "memory", 2.5, True)]


def test_remove_does_not_wait_for_the_next_one_of_that_name(
    api: AdminService, adapters: StandInAdapters, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another operator has added it already."""
    newer = StandInAdapters()._state().model_copy(update={"index": 4})
    monkeypatch.setattr(adapters, "state", lambda name: newer)
    assert main(["adapters", "remove", "memory", "--wait", "--url", api.http.endpoint]) == 0
    shown = capsys.readouterr().out
    assert "adapter 'memory' was removed" in shown
    assert "3      memory  memory  removed" in shown


def test_values_are_json_or_words(api: AdminService, settings: StandInSettings, capsys: Captured) -> None:
    words = ["eviction-ratio", "0.1", "--default-quota-gb", "null", "eviction_policy", "LRU", "reject_unsalted", "true"]
    assert main(["config", "set", "--url", api.http.endpoint, "--", *words]) == 0
    assert settings.given == {
        "eviction_ratio": 0.1,
        "default_quota_gb": None,
        "eviction_policy": "LRU",
        "reject_unsalted": True,
    }
    assert "under way" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["adapters", "sto"], "no command is called 'adapters sto'"),
        (["adapters", "add", "{"], "JSON: Expecting property name enclosed in double quotes at column 2"),
        (["adapters", "add", "[]"], 'JSON: expected an object such as {"type": "memory"}'),
        (["adapters", "drain", "a/b"], "NAME 'a/b': no adapter is called so"),
        (["adapters", "remove", "a", "--deadline-seconds", "-1"], "expected a number from 0 to 86400"),
        (["adapters", "remove", "a", "--deadline-seconds", "nan"], "expected a number from 0 to 86400"),
        (["config", "set", "eviction_ratio"], "'eviction_ratio' has no value; give each setting as NAME VALUE"),
        (["config", "set", "a-b", "1", "a_b", "2"], "'a_b' is given twice"),
    ],
)
def test_mistakes_on_the_command_line(arguments: list[str], says: str, capsys: Captured) -> None:
    assert main(arguments) == 2
    assert says in capsys.readouterr().err


def test_what_the_server_refuses_is_said(api: AdminService, capsys: Captured) -> None:
    assert main(["adapters", "drain", "memory", "--url", api.http.endpoint, "--wait"]) == 0
    capsys.readouterr()
    with running(adapters=Unknown(), settings=StandInSettings()) as server:
        assert main(["adapters", "remove", "none", "--url", server.http.endpoint]) == 1
    assert "answers 404 Not Found: no L2 adapter is called 'none'; there are: memory" in capsys.readouterr().err


class Unknown(StandInAdapters):
    def remove(self, name: str, deadline_seconds: float, force: bool) -> AdapterState:
        return self.state(name)
