"""What this distribution offers."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core import Offer, hookimpl


@hookimpl
def lmcache_services() -> Sequence[Offer]:
    return [
        Offer(
            "sidecar",
            "Programs that run beside the server",
            "lmcache_sidecar.service:open_sidecar",
            "lmcache_sidecar.settings:SidecarSettings",
        )
    ]
