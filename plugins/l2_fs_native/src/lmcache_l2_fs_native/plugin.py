"""What this distribution offers."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core import Capability, Offer, StorageFacts, hookimpl


@hookimpl
def lmcache_l2_adapters() -> Sequence[Offer]:
    return [
        Offer(
            name="fs_native",
            summary="Each object a file, moved and verified by compiled threads or io_uring",
            settings="lmcache_l2_fs_native.config:FsNativeSettings",
            open="lmcache_l2_fs_native.opening:open_fs_native",
            storage=StorageFacts(
                folders=("base_path",), capacity=("max_capacity_gb",), direct_io="use_odirect", io_engine="io_engine"
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
