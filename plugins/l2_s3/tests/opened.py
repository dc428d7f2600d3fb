"""Adapters that tests have opened, and what they say of themselves."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from lmcache_core import CircuitState
from lmcache_devkit.l2_driver import L2Driver
from lmcache_l2_s3.adapter import S3Adapter

WAIT_SECONDS = 20.0
Open = Callable[..., L2Driver]


def until(true: Callable[[], bool]) -> None:
    """What happens on other threads without a notification."""
    end = time.monotonic() + WAIT_SECONDS
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def counters(driver: L2Driver) -> Any:
    adapter = driver.adapter
    assert isinstance(adapter, S3Adapter)
    return adapter.counters()


def circuit(driver: L2Driver) -> CircuitState:
    assert isinstance(driver.adapter, S3Adapter)
    return driver.adapter.circuit.state
