"""What this distribution offers."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core import Offer, SettingGroup, hookimpl


@hookimpl
def lmcache_services() -> Sequence[Offer]:
    return [
        Offer(
            "fleet_member",
            "Membership in a fleet",
            "lmcache_fleet_member.member:open_member",
            "lmcache_fleet_member.settings:MemberSettings",
            check="lmcache_fleet_member.doctor:check",
        )
    ]


@hookimpl
def lmcache_http_routes() -> Sequence[Offer]:
    return [Offer("fleet_member", "`GET /fleet/proof/{challenge}`", "lmcache_fleet_member.member:open_proof")]


@hookimpl
def lmcache_settings() -> Sequence[SettingGroup]:
    module = "lmcache_fleet_member.settings"
    return [SettingGroup("Coordinator", f"{module}:CoordinatorFlags", f"{module}:apply")]
