"""Every setting with its value, its source, and without secrets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmcache_core.app.configuration import read_settings
from lmcache_core.app.masking import MASK
from lmcache_core.app.open_services import plugin_rows
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.settings import ServerSettings
from lmcache_core.app.shown_settings import all_secrets, shown_adapter, shown_settings


def settings_of(**values: Any) -> ServerSettings:
    return ServerSettings(**values)


PLUGINS = load_plugins(safe_mode=True)


def test_each_says_who_gave_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "lmcache.yaml"
    config.write_text("chunk_size: 16\nport: 7000\nl1_size_gb: 3\n")
    monkeypatch.setenv("LMCACHE_CONFIG", str(config))
    monkeypatch.setenv("LMCACHE_L1_SIZE_GB", "2")
    monkeypatch.setenv("LMCACHE_LOG_LEVEL", "")
    rows = {row.name: row for row in shown_settings(read_settings({"port": 6000}), PLUGINS)}
    assert list(rows) == list(ServerSettings.model_fields)
    assert {name: (rows[name].value, rows[name].source, rows[name].given_by) for name in ("port", "l1_size_gb")} == {
        "port": (6000, "flag", "--port"),
        "l1_size_gb": (2.0, "environment", "LMCACHE_L1_SIZE_GB"),
    }
    assert (rows["chunk_size"].value, rows["chunk_size"].source) == (16, "file")
    assert rows["chunk_size"].given_by == str(config)
    assert (rows["log_level"].value, rows["log_level"].source, rows["log_level"].given_by) == ("INFO", "default", "")
    assert rows["port"].default == 5555


def test_secrets_are_asterisks_everywhere() -> None:
    settings = settings_of(
        l2_adapter=(
            {
                "type": "memory",
                "password": "p-secret-1",
                "eviction": {"eviction_policy": "LRU", "api_key": "p-secret-2"},
            },
        ),
        eviction_policy={"type": "LRU", "token": "p-secret-3"},
        offer_settings={"subscriber:log": {"url": "http://u:p-secret-4@h/", "credentials": {"deep": ["p-secret-6"]}}},
        instance_id="http://user:p-secret-5@collector:4318",
    )
    text = repr(shown_settings(settings, PLUGINS))
    assert "p-secret" not in text
    assert "collector:4318" in text
    found = all_secrets(settings, PLUGINS)
    assert found == {f"p-secret-{number}" for number in range(1, 7)}


def test_secrets_of_an_adapters_policy_are_known_by_its_model(install: Callable[..., Path]) -> None:
    install(
        "acme",
        """
        from pydantic import SecretStr
        from lmcache_core import Offer, PluginSettings, hookimpl

        class AcmeSettings(PluginSettings):
            phrase: SecretStr
            pace: int = 1

        def open_it(settings):
            raise NotImplementedError

        @hookimpl
        def lmcache_eviction_policies():
            return [Offer("acme", "for tests", "acme_plugin:open_it", "acme_plugin:AcmeSettings")]
        """,
    )
    policy = {"type": "acme", "phrase": "p-secret-1", "pace": 2}
    given = {"type": "memory", "eviction": {"eviction_policy": policy, "trigger_watermark": 0.5}}
    plugins = load_plugins()
    shown = shown_adapter(given, plugins)
    assert shown["eviction"] == {"eviction_policy": {**policy, "phrase": MASK}, "trigger_watermark": 0.5}
    assert all_secrets(settings_of(l2_adapter=(given,)), plugins) == {"p-secret-1"}


def test_plugins_are_shown_with_their_hooks() -> None:
    (builtin,) = [row for row in plugin_rows(PLUGINS) if row["name"] == "builtin"]
    assert "lmcache_l2_adapters" in builtin["hooks"]
    assert "traceback" not in builtin
    assert {"l2_adapter", "subscriber"} <= {offer["kind"] for offer in builtin["offers"]}
