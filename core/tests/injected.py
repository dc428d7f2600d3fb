"""The `fault_inject` adapter, as tests of servers name it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

FAULT_INJECT = "fault_inject"
VERBS = ("store", "lookup", "load", "delete")
TRANSFERS = ("store", "load")
OF_TRANSFERS = ("torn", "short", "corrupt")


def injected(
    inner: Mapping[str, Any] | None = None,
    verbs: Iterable[str] = VERBS,
    *,
    also: Mapping[str, Any] | None = None,
    **rates: float,
) -> dict[str, Any]:
    """What `--l2-adapter` is given: `inner`, or memory, whose operations go wrong at these rates, `also` beside them."""
    faults = {
        verb: {name: rate for name, rate in rates.items() if verb in TRANSFERS or name not in OF_TRANSFERS}
        for verb in verbs
    }
    return {"type": FAULT_INJECT, "inner": dict(inner or {"type": "memory"}), **faults, **(also or {})}


def mock(max_size_gb: float, bytes_per_second: float) -> dict[str, Any]:
    """Memory with the speed of a device."""
    return {"type": "mock", "max_size_gb": max_size_gb, "mock_bandwidth_gb": bytes_per_second / 2**30}
