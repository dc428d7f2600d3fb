"""Eviction of an adapter's objects: it is opened with the server, or refused with the reason."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from lmcache_client.errors import ConfigError
from lmcache_core.app.build import build
from lmcache_core.app.configuration import read_settings
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.settings import ServerSettings
from lmcache_core.builtin.memory_l2 import MemoryAdapter
from lmcache_core.contracts.capability import Capability
from lmcache_devkit import free_port


def settings(**eviction: Any) -> ServerSettings:
    adapters = ({"type": "memory"}, {"type": "memory", "eviction": {"eviction_policy": "LRU", **eviction}})
    given: dict[str, Any] = {"port": free_port(), "http_enabled": False, "l1_size_gb": 1 / 512}
    return read_settings({**given, "l2_adapter": adapters}, load_plugins())


def test_each_adapter_that_asks_for_it_has_a_controller_and_threads_of_its_own() -> None:
    server = build(settings(trigger_watermark=0.5), load_plugins())
    server.start()
    try:
        status = server.status()
        assert status["l2"][0]["eviction"] is None
        assert status["l2"][1]["eviction"]["eviction_policy"] == "LRU"
        assert status["l2"][1]["eviction"]["trigger_watermark"] == 0.5
        assert {"l2-eviction-memory-2", "l2-listing-memory-2"} <= set(status["threads"])
        assert not {"l2-eviction-memory", "l2-listing-memory"} & set(status["threads"])
    finally:
        assert server.stop(1.0)


def test_an_adapter_that_cannot_evict_stops_the_start_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(MemoryAdapter, "capabilities", Capability.USAGE | Capability.LIST)
    with caplog.at_level(logging.ERROR), pytest.raises(ConfigError, match="adapter 'memory-2' cannot evict") as caught:
        build(settings(), load_plugins())
    assert "does not declare DELETE" in str(caught.value)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("l2-memory")]


def test_an_adapter_that_lists_nothing_has_no_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryAdapter, "capabilities", Capability.USAGE | Capability.DELETE)
    server = build(settings(), load_plugins())
    server.start()
    try:
        status = server.status()
        assert status["l2"][1]["eviction"]["listing"] == "not offered"
        assert "l2-listing-memory-2" not in status["threads"]
    finally:
        assert server.stop(1.0)
