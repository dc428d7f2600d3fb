"""What this distribution offers."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core import Capability, Offer, hookimpl


@hookimpl
def lmcache_l2_adapters() -> Sequence[Offer]:
    both = (
        Capability.DELETE
        | Capability.USAGE
        | Capability.LIST
        | Capability.DURABLE
        | Capability.ZERO_COPY
        | Capability.ANY_LENGTH
    )
    return [
        Offer(
            name="nixl_store",
            summary="Objects in a fixed pool of slots that NIXL moves: a file, or objects of S3 or Azure",
            settings="lmcache_l2_nixl.config:NixlStoreSettings",
            open="lmcache_l2_nixl.store:open_nixl_store",
            capabilities=both | Capability.VERIFIES,
        ),
        Offer(
            name="nixl_store_dynamic",
            summary="Each object a file that NIXL moves, opened and registered for each transfer",
            settings="lmcache_l2_nixl.config:NixlStoreDynamicSettings",
            open="lmcache_l2_nixl.dynamic:open_nixl_store_dynamic",
            capabilities=both,
        ),
    ]
