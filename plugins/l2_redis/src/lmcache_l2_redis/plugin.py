"""What this distribution offers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lmcache_core import Capability, Offer, StorageFacts, hookimpl

SUMMARIES: Final = (
    ("redis", "Objects in Redis: one server, Sentinel, or a cluster"),
    ("valkey", "Objects in Valkey: the same as redis"),
    ("resp", "Objects in any server that speaks the protocol of Redis: the same as redis"),
)


@hookimpl
def lmcache_l2_adapters() -> Sequence[Offer]:
    return [
        Offer(
            name=name,
            summary=summary,
            settings="lmcache_l2_redis.config:RedisSettings",
            open="lmcache_l2_redis.opening:open_redis",
            storage=StorageFacts(capacity=("max_capacity_gb",), shared="shared", owner="owns"),
            capabilities=Capability.DELETE
            | Capability.USAGE
            | Capability.LIST
            | Capability.ANY_LENGTH
            | Capability.VERIFIES,
            optional_capabilities=Capability.SHARED | Capability.DURABLE,
        )
        for name, summary in SUMMARIES
    ]
