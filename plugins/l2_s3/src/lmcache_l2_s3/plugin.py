"""What this distribution offers."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core import Capability, Offer, StorageFacts, hookimpl


@hookimpl
def lmcache_l2_adapters() -> Sequence[Offer]:
    return [
        Offer(
            name="s3",
            summary="Objects in a bucket of AWS S3 or of a store that speaks its protocol",
            settings="lmcache_l2_s3.config:S3Settings",
            open="lmcache_l2_s3.adapter:open_s3",
            storage=StorageFacts(capacity=("max_capacity_gb",), shared="shared", owner="owns"),
            capabilities=Capability.DELETE | Capability.LIST | Capability.DURABLE | Capability.ANY_LENGTH,
            optional_capabilities=Capability.USAGE | Capability.SHARED,
        )
    ]
