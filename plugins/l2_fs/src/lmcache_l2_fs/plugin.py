"""What this distribution offers."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core import Capability, Offer, StorageFacts, hookimpl


@hookimpl
def lmcache_l2_adapters() -> Sequence[Offer]:
    return [
        Offer(
            name="fs",
            summary="Each object a file in a directory of a local or network file system",
            settings="lmcache_l2_fs.config:FsSettings",
            open="lmcache_l2_fs.adapter:open_fs",
            storage=StorageFacts(folders=("base_path",), capacity=("max_capacity_gb",), direct_io="use_odirect"),
            capabilities=Capability.DELETE
            | Capability.USAGE
            | Capability.LIST
            | Capability.DURABLE
            | Capability.ANY_LENGTH,
        )
    ]
