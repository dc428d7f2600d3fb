"""Everything that a server is made of."""

from __future__ import annotations

from typing import Any

import msgspec

from lmcache_core.app.adapter_changes import AdapterChanges
from lmcache_core.app.common_parts import CommonParts
from lmcache_core.app.open_engine_port import EnginePort
from lmcache_core.app.open_services import Services
from lmcache_core.app.open_tiers import Tiers
from lmcache_core.app.setting_changes import SettingChanges
from lmcache_core.contracts.server_control import ServerControl
from lmcache_core.contracts.server_view import ServerInfo
from lmcache_core.controllers.adapter_jobs import CompletionThread
from lmcache_core.controllers.policy_guard import GuardedPolicy
from lmcache_core.controllers.supervisor import Supervisor
from lmcache_core.l1.arena import Preallocation


class Parts(msgspec.Struct, eq=False):
    """Everything that `build` made, in the groups in which it was made.  The server owns all of it."""

    common: CommonParts
    info: ServerInfo
    tiers: Tiers
    preallocation: Preallocation
    engine_port: EnginePort
    completions: CompletionThread
    supervisor: Supervisor
    adapters: AdapterChanges
    settings: SettingChanges
    services: Services
    control: ServerControl

    def guarded_policies(self) -> list[GuardedPolicy[Any]]:
        """The seat of each policy, those of L2 adapters included."""
        tiers = self.tiers
        own = tiers.eviction.guarded, tiers.store.guarded, tiers.prefetch.guarded
        return [*own, *(eviction.guarded for eviction in tiers.l2.evictions)]
