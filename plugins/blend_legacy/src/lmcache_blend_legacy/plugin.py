"""What this distribution offers.  Imported at every start, so nothing but names is here."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core import Offer, SettingGroup, hookimpl


@hookimpl
def lmcache_request_modules() -> Sequence[Offer]:
    return [
        Offer(
            "blend_legacy",
            "Stores and finds documents of a prompt, each for itself, for engines with a buffer of rows",
            "lmcache_blend_legacy.module:open_module",
            "lmcache_blend_legacy.settings:BlendLegacySettings",
            operations=(
                "cb_register_kv_cache",
                "cb_unregister_kv_cache",
                "cb_store_pre_computed",
                "cb_store_final",
                "cb_lookup_pre_computed",
                "cb_lookup_pre_computed_v2",
                "cb_retrieve_pre_computed_v2",
            ),
        )
    ]


@hookimpl
def lmcache_services() -> Sequence[Offer]:
    about = "Metrics of the request module `blend_legacy`"
    return [Offer("blend_legacy", about, "lmcache_blend_legacy.service:BlendLegacyService", default=True)]


@hookimpl
def lmcache_settings() -> Sequence[SettingGroup]:
    settings = "lmcache_blend_legacy.settings"
    return [SettingGroup("Blending of the first version", f"{settings}:BlendLegacyFlags", f"{settings}:apply")]
