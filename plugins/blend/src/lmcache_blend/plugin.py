"""What this distribution offers.  Imported at every start, so nothing but names is here."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core import Offer, SettingGroup, hookimpl


@hookimpl
def lmcache_request_modules() -> Sequence[Offer]:
    return [
        Offer(
            "blend",
            "Finds stored chunks of a prompt wherever they are in it",
            "lmcache_blend.module:open_module",
            "lmcache_blend.settings:BlendSettings",
            operations=(
                "blend_lookup",
                "blend_prepare",
                "blend_commit",
                "cb_protocol_handshake",
                "cb_register_rope",
                "cb_unregister_rope",
                "cb_unified_lookup",
                "cb_retrieve_pre_computed",
                "cb_reorder_plan",
            ),
        )
    ]


@hookimpl
def lmcache_services() -> Sequence[Offer]:
    return [
        Offer("blend", "Metrics of the request module `blend`", "lmcache_blend.service:BlendService", default=True),
    ]


@hookimpl
def lmcache_settings() -> Sequence[SettingGroup]:
    settings = "lmcache_blend.settings"
    return [SettingGroup("Blending", f"{settings}:BlendFlags", f"{settings}:apply")]


@hookimpl(optionalhook=True)
def lmcache_coordinator_views() -> Sequence[Offer]:
    about, module = "Chunks of all servers by their tokens, for servers that blend", "lmcache_blend.view"
    return [Offer("blend", about, f"{module}:BlendView", f"{module}:ViewSettings")]
