"""What this distribution offers."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core import Capability, Offer, hookimpl


@hookimpl
def lmcache_l2_adapters() -> Sequence[Offer]:
    return [
        Offer(
            name="mooncake_store",
            summary="Objects in the pooled memory of a Mooncake Store, over TCP or RDMA",
            settings="lmcache_l2_mooncake.config:MooncakeSettings",
            open="lmcache_l2_mooncake.adapter:open_mooncake",
            capabilities=Capability.DELETE | Capability.SHARED | Capability.ZERO_COPY | Capability.ANY_LENGTH,
            optional_capabilities=Capability.LIST,
        )
    ]
