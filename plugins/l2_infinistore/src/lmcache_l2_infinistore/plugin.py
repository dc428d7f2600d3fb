"""What this distribution offers."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core import Capability, Offer, hookimpl


@hookimpl
def lmcache_l2_adapters() -> Sequence[Offer]:
    return [
        Offer(
            name="infinistore",
            summary="Objects in an InfiniStore, over RDMA or TCP (legacy: tested with a simulation only)",
            settings="lmcache_l2_infinistore.config:InfinistoreSettings",
            open="lmcache_l2_infinistore.adapter:open_infinistore",
            capabilities=Capability.DELETE | Capability.SHARED,
            check="lmcache_l2_infinistore.doctor:check",
        )
    ]
