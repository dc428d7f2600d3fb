"""What this distribution offers: two commands, and two L2 adapters for tests."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core import Capability, Offer, StorageFacts, hookimpl

_HERE = "lmcache_devkit"
_STORAGE = StorageFacts(capacity=("max_size_gb",))
_OF_MEMORY = Capability.DELETE | Capability.USAGE | Capability.LIST | Capability.ANY_LENGTH


@hookimpl
def lmcache_l2_adapters() -> Sequence[Offer]:
    mock, inject = f"{_HERE}.mock_adapter", f"{_HERE}.fault_inject"
    return [
        Offer(
            "mock",
            "Memory with the speed of a device",
            f"{mock}:open_mock",
            f"{mock}:MockSettings",
            _OF_MEMORY,
            storage=_STORAGE,
        ),
        Offer(
            "fault_inject",
            "Another adapter, with faults",
            f"{inject}_opening:open_fault_inject",
            f"{inject}_settings:FaultInjectSettings",
            wraps=True,
        ),
    ]


@hookimpl
def lmcache_commands() -> Sequence[Offer]:
    return [
        Offer(
            "plugins.check",
            "run the checks of its kind against your own disk, bucket or server",
            f"{_HERE}.check_command:CHECK",
        ),
        Offer("plugins.new", "start a plugin of your own", f"{_HERE}.new_command:NEW"),
    ]
