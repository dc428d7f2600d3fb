"""The flags about sidecar programs reach the service, or say what they lack."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from lmcache_client.errors import ConfigError
from lmcache_core.app.configuration import ServerFlags, read_settings
from lmcache_core.app.offer_specs import offer_specs
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.shown_settings import all_secrets, shown_settings
from lmcache_sidecar.settings import SidecarSettings

LOCATIONS = "--runtime-plugin-locations"
CONFIG = "--runtime-plugin-config"


def services(*flags: str, safe_mode: bool = False) -> list[Any]:
    plugins = load_plugins(safe_mode=safe_mode)
    settings = read_settings(ServerFlags(plugins).given(flags), plugins)
    return [spec.settings for spec in offer_specs(settings, plugins).services if spec.name == "sidecar"]


def test_flags_reach_the_service() -> None:
    assert services() == []
    (settings,) = services(LOCATIONS, "/a.py", LOCATIONS, "/b", CONFIG, '{"a": [1]}')
    assert settings == SidecarSettings(locations=("/a.py", "/b"), config={"a": [1]})


def test_settings_come_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMCACHE_RUNTIME_PLUGIN_LOCATIONS", "/a.py, /b")
    monkeypatch.setenv("LMCACHE_RUNTIME_PLUGIN_CONFIG", '{"a": [1]}')
    assert services() == [SidecarSettings(locations=("/a.py", "/b"), config={"a": [1]})]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ([CONFIG, "[1]"], 'expected a JSON object such as {"interval_seconds": 10}'),
        ([CONFIG, "{"], "not JSON: "),
        ([CONFIG, '{"a": 1}'], "--runtime-plugin-config has no effect without --runtime-plugin-locations"),
    ],
)
def test_what_makes_no_sense_is_refused(flags: Sequence[str], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        services(*flags)
    assert says in str(refused.value)


def test_in_safe_mode_no_program_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert services(LOCATIONS, "/a.py", safe_mode=True) == []
    monkeypatch.setenv("LMCACHE_RUNTIME_PLUGIN_LOCATIONS", "/a.py")
    assert services(safe_mode=True) == []
    settings = read_settings({}, load_plugins(safe_mode=True))
    assert ["LMCACHE_RUNTIME_PLUGIN_LOCATIONS" in line for line in settings.unused] == [True]


@pytest.mark.usefixtures("only_core")
def test_without_the_plugin_the_flag_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"--runtime-plugin-locations .*pip install lmcache-sidecar"):
        services(LOCATIONS, "/a.py")
    monkeypatch.setenv("LMCACHE_RUNTIME_PLUGIN_LOCATIONS", "/a.py")
    with pytest.raises(ConfigError, match=r"LMCACHE_RUNTIME_PLUGIN_LOCATIONS .*pip install lmcache-sidecar"):
        services()


def test_secrets_of_the_configuration_are_masked() -> None:
    plugins = load_plugins()
    config = {"credentials": {"deep": ["PLANTED-1"]}, "url": "http://u:PLANTED-2@h/"}
    settings = read_settings(ServerFlags(plugins).given([LOCATIONS, "/a", CONFIG, json.dumps(config)]), plugins)
    assert "PLANTED" not in repr(shown_settings(settings, plugins))
    assert {"PLANTED-1", "PLANTED-2"} <= all_secrets(settings, plugins)
