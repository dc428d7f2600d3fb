"""Adapters that a running server cannot take in: with wrong settings, too slow to open, or too many."""

from __future__ import annotations

from typing import Any

import pytest

from core.tests.server.changing_server import MEMORY, StartServer
from lmcache_client.errors import ConfigError
from lmcache_core.app import adapter_changes
from lmcache_core.contracts.server_control import NoSuchAdapterError, NotNowError


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
    assert server._parts.tiers.l2.clients == ()
    with pytest.raises(NoSuchAdapterError, match="no L2 adapter is called 'memory'; there are: none"):
        server._parts.adapters.drain("memory")


def test_there_is_a_most_of_adapters(start: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_changes, "ADAPTERS_MAX", 2)
    server = start(MEMORY)
    server._parts.adapters.add(MEMORY)
    with pytest.raises(NotNowError, match="there are 2 L2 adapters, which is the most; remove one first"):
        server._parts.adapters.add(MEMORY)
