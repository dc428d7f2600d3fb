"""What this distribution offers."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core import Capability, Offer, StorageFacts, hookimpl


@hookimpl
def lmcache_l2_adapters() -> Sequence[Offer]:
    return [
        Offer(
            name="dax",
            summary="Objects in slots of memory that devices map: persistent memory, CXL, or files",
            settings="lmcache_l2_dax.config:DaxSettings",
            open="lmcache_l2_dax.adapter:open_dax",
            storage=StorageFacts(devices=("device_path",), capacity=("max_dax_size_gb",), in_memory=True),
            capabilities=Capability.DELETE
            | Capability.USAGE
            | Capability.LIST
            | Capability.ZERO_COPY
            | Capability.VERIFIES
            | Capability.ANY_LENGTH,
            optional_capabilities=Capability.DURABLE,  # with persist_enabled
        )
    ]
