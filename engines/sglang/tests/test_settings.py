"""What users write as `linker_extra_config`."""

from __future__ import annotations

from typing import Any

import pytest

from lmcache_client import ConfigError
from lmcache_sglang.settings import LinkerSettings


def test_what_is_left_out_has_a_default() -> None:
    assert LinkerSettings.read(None) == LinkerSettings()
    assert LinkerSettings.read({"port": 6000}).url == "tcp://127.0.0.1:6000"
    assert LinkerSettings.read({"host": "localhost", "min_load_pages": 4}).url == "tcp://localhost:5555"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"lookup_timout_ms": 5}, "did you mean 'lookup_timeout_ms'"),
        ({"url": "tcp://h:1", "port": 2}, "one of them"),
        ({"min_load_pages": 0}, "min_load_pages is 0; it must be above 0"),
        ({"min_load_pages": 1.5}, "min_load_pages is 1.5"),
        ({"heartbeat_seconds": "5"}, "heartbeat_seconds is '5'"),
        ({"heartbeat_seconds": float("nan")}, "heartbeat_seconds is nan"),
        ({"heartbeat_seconds": float("inf")}, "heartbeat_seconds is inf"),
        ({"store": 1}, "store is 1"),
        ({"lookup_timeout_ms": True}, "lookup_timeout_ms is True"),
        ({"url": 5}, "url is 5"),
        ({"prefetch_timeout_seconds": 0}, "prefetch_timeout_seconds is 0; it must be above 0"),
        (
            {"in_process": True},
            "linker_extra_config has 'in_process', but SGLang has no cache in its own process",
        ),
        ({"config_file": "a.yaml"}, "'config_file', but SGLang has no cache"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        LinkerSettings.read(given)
