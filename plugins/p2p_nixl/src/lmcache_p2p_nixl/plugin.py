"""What this distribution offers."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core import Offer, hookimpl


@hookimpl
def lmcache_transfer_channels() -> Sequence[Offer]:
    return [
        Offer(
            "nixl",
            "One-sided reads by NIXL and UCX: InfiniBand, shared memory, TCP",
            "lmcache_p2p_nixl.channel:NixlChannel",
            "lmcache_p2p_nixl.settings:NixlChannelSettings",
            check="lmcache_p2p_nixl.doctor:check",
        )
    ]
