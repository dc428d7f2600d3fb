"""What this distribution offers."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core import Offer, hookimpl


@hookimpl(optionalhook=True)
def lmcache_coordinator_states() -> Sequence[Offer]:
    module = "lmcache_coordinator_redis.state"
    return [
        Offer(
            "redis", "quotas and secrets in Redis or Valkey", f"{module}:open_redis", settings=f"{module}:RedisSettings"
        )
    ]
