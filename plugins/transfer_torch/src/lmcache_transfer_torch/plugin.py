"""What this distribution offers."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core import Offer, hookimpl


@hookimpl
def lmcache_request_modules() -> Sequence[Offer]:
    return [
        Offer(
            name="lmcache_driven",
            summary="The server copies between L1 and the engine's paged KV cache, in host or GPU memory",
            settings="lmcache_transfer_torch.config:TransferSettings",
            open="lmcache_transfer_torch.module:open_lmcache_driven",
        )
    ]
