"""What this distribution offers."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core import Offer, SettingGroup, hookimpl


@hookimpl
def lmcache_services() -> Sequence[Offer]:
    return [
        Offer(
            "admin",
            "The HTTP API for operators",
            "lmcache_admin.service:open_admin",
            "lmcache_admin.settings:AdminSettings",
            default=True,
        )
    ]


@hookimpl
def lmcache_settings() -> Sequence[SettingGroup]:
    module = "lmcache_admin.settings"
    return [SettingGroup("Admin HTTP", f"{module}:HttpFlags", f"{module}:apply")]
