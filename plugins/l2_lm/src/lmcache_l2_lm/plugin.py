"""What this distribution offers."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core import Capability, Offer, hookimpl


@hookimpl
def lmcache_l2_adapters() -> Sequence[Offer]:
    return [
        Offer(
            name="lm",
            summary="Objects in a store of the public lm:// protocol, such as `lmcache store-server`",
            settings="lmcache_l2_lm.config:LmSettings",
            open="lmcache_l2_lm.adapter:open_lm",
            capabilities=Capability.SHARED | Capability.ANY_LENGTH | Capability.VERIFIES,
            check="lmcache_l2_lm.doctor:check",
        )
    ]


@hookimpl
def lmcache_commands() -> Sequence[Offer]:
    about = "keep values in memory or in a folder for clients of the lm:// protocol"
    return [Offer("store-server", about, "lmcache_l2_lm.store_server.command:COMMAND")]
