"""What the kit offers servers: an L2 backend that is made up, and one that goes wrong."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core import Capability, Offer, hookimpl

_HERE = "lmcache_core.testing"
_OF_MEMORY = Capability.DELETE | Capability.USAGE | Capability.LIST | Capability.ANY_LENGTH


@hookimpl
def lmcache_l2_adapters() -> Sequence[Offer]:
    mock, inject = f"{_HERE}.mock_adapter", f"{_HERE}.fault_inject"
    return [
        Offer("mock", "Memory with the speed of a device", f"{mock}:open_mock", f"{mock}:MockSettings", _OF_MEMORY),
        Offer(
            "fault_inject",
            "Another adapter, with faults",
            f"{inject}_opening:open_fault_inject",
            f"{inject}_settings:FaultInjectSettings",
            wraps=True,
        ),
    ]
