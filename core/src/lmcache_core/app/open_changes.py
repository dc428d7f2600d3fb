"""What an operator may change while the server runs."""

from __future__ import annotations

import msgspec

from lmcache_core.app.common_parts import CommonParts
from lmcache_core.app.open_tiers import Tiers
from lmcache_core.app.reconfigure import AdapterChanges, L2Parts
from lmcache_core.app.setting_changes import Adjustable, SettingChanges
from lmcache_core.controllers.threads import CompletionThread, Supervisor
from lmcache_core.server.request_fields import SaltGate


class Changes(msgspec.Struct, frozen=True, eq=False):
    adapters: AdapterChanges
    settings: SettingChanges


def open_changes(
    common: CommonParts, tiers: Tiers, gate: SaltGate, completions: CompletionThread, supervisor: Supervisor
) -> Changes:
    """What an operator may change while the server runs."""
    users = L2Parts(tiers.store, tiers.prefetch, completions, supervisor, common.clock, common.bus, common.conditions)
    adjustable = Adjustable(
        storage=tiers.storage,
        store=tiers.store,
        prefetch=tiers.prefetch,
        eviction=tiers.eviction,
        quotas=tiers.quotas,
        gate=gate,
        tier=tiers.l2,
        l1_bytes=tiers.arena.size_bytes,
        plugins=common.plugins,
        kernels=common.kernels,
        events=common.bus,
        hidden=common.hidden,
    )
    return Changes(
        AdapterChanges(tiers.l2, tiers.opener, users),
        SettingChanges(common.settings, adjustable, tiers.isolates_salts),
    )
