"""What this distribution offers."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core import Capability, Offer, StorageFacts, hookimpl


@hookimpl
def lmcache_l2_adapters() -> Sequence[Offer]:
    return [
        Offer(
            name="raw_block",
            summary="Objects in fixed slots of a block device or a pre-sized file",
            settings="lmcache_l2_raw_block.config:RawBlockSettings",
            open="lmcache_l2_raw_block.adapter:open_raw_block",
            storage=StorageFacts(
                devices=("device_path",), capacity=("capacity_bytes",), direct_io="use_odirect", io_engine="io_engine"
            ),
            capabilities=Capability.DELETE
            | Capability.USAGE
            | Capability.LIST
            | Capability.DURABLE
            | Capability.ZERO_COPY
            | Capability.VERIFIES
            | Capability.ANY_LENGTH,
        )
    ]
