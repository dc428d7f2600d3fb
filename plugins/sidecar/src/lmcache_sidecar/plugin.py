"""What this distribution offers."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core import Offer, SettingGroup, hookimpl


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


@hookimpl
def lmcache_settings() -> Sequence[SettingGroup]:
    module = "lmcache_sidecar.settings"
    return [SettingGroup("Sidecar programs", f"{module}:SidecarFlags", f"{module}:apply")]
