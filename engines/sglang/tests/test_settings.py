"""What users write as `linker_extra_config`."""

from __future__ import annotations

from typing import Any

import pytest

from lmcache_client import ConfigError
from lmcache_sglang.settings import HiCacheSettings, LinkerSettings


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
        ({"in_process": True, "url": "tcp://h:1"}, "has url beside in_process, which has no server: give one of them"),
        ({"in_process": True, "port": 5555}, "has port beside in_process"),
        ({"in_process": True, "host": "h"}, "has host beside in_process"),
        ({"in_process": "yes"}, "in_process is 'yes': a value like False"),
        ({"config_file": "a.yaml"}, "has config_file without in_process"),
        ({"config_file": "a.yaml", "in_process": False}, "has config_file without in_process"),
        ({"in_process": True, "config_file": 5}, "config_file is 5"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        LinkerSettings.read(given)


def test_a_cache_in_sglangs_process_is_the_linkers_alone() -> None:
    given = LinkerSettings.read({"in_process": True, "config_file": "a.yaml"})
    assert (given.in_process, given.config_file) == (True, "a.yaml")
    for name in ("in_process", "config_file"):
        with pytest.raises(ConfigError, match=f"extra_config has '{name}', but HiCacheNode has no cache in SGLang's"):
            HiCacheSettings.read({name: True})
