"""What this distribution offers."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core import Offer, hookimpl


@hookimpl(optionalhook=True)
def lmcache_coordinator_states() -> Sequence[Offer]:
    module = "lmcache_coordinator_etcd.state"
    return [Offer("etcd", "quotas and secrets in etcd", f"{module}:open_etcd", settings=f"{module}:EtcdSettings")]
