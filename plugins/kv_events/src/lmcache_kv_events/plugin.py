"""What this distribution offers.  Imported at every start, so nothing but names is here."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core import Offer, hookimpl


@hookimpl
def lmcache_request_modules() -> Sequence[Offer]:
    return [
        Offer(
            name="kv_events",
            summary="Streams what L1 gains and loses to engines that publish KV events",
            open="lmcache_kv_events.module:open_module",
            operations=("subscribe_kv_events",),
            default=True,
        )
    ]
