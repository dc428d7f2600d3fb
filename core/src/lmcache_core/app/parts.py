"""Everything that a server is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lmcache_core.admin.plugin_route import PluginRoute
from lmcache_core.admin.server import AdminServer
from lmcache_core.app.admin_api import AdminApi
from lmcache_core.app.l2_tier import L2Tier
from lmcache_core.app.open_changes import Changes
from lmcache_core.app.open_engine_port import EnginePort
from lmcache_core.app.open_l2_eviction import L2Eviction
from lmcache_core.app.open_tiers import Tiers
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.reconfigure import AdapterChanges
from lmcache_core.app.runtime.runtime_plugins import RuntimePlugins
from lmcache_core.app.setting_changes import SettingChanges
from lmcache_core.contracts.request_module import RequestModule
from lmcache_core.contracts.server_info import ServerInfo
from lmcache_core.controllers.adapter_port import AdapterPort
from lmcache_core.controllers.completion_thread import CompletionThread
from lmcache_core.controllers.eviction import EvictionController
from lmcache_core.controllers.prefetch import PrefetchController
from lmcache_core.controllers.quota import Quotas
from lmcache_core.controllers.store import StoreController
from lmcache_core.controllers.supervisor import Supervisor
from lmcache_core.events.bus import EventBus
from lmcache_core.kernels.choice import Kernels
from lmcache_core.l1.arena import Arena
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.growth import Growth
from lmcache_core.server.pools import AffinePool, Pool
from lmcache_core.server.prompt_memory import PromptMemory
from lmcache_core.server.reaper import Reaper
from lmcache_core.server.registrations import Registrations
from lmcache_core.server.router import Router
from lmcache_core.server.salt_gate import SaltGate
from lmcache_core.storage.l2_deletions import L2Deletions
from lmcache_core.storage.manager import StorageManager


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Everything that `build` made, in the groups in which it was made; whoever asks for a part needs no group.  The
    server owns all of it."""

    info: ServerInfo
    plugins: LoadedPlugins
    kernels: Kernels
    bus: EventBus
    tiers: Tiers
    growth: Growth
    engine_port: EnginePort
    completions: CompletionThread
    supervisor: Supervisor
    changes: Changes
    admin_api: AdminApi
    runtime_plugins: RuntimePlugins | None

    # --- L1 and L2

    @property
    def arena(self) -> Arena:
        return self.tiers.arena

    @property
    def tier(self) -> L2Tier:
        return self.tiers.l2

    @property
    def cache(self) -> L1Cache:
        return self.tiers.cache

    @property
    def storage(self) -> StorageManager:
        return self.tiers.storage

    @property
    def store(self) -> StoreController:
        return self.tiers.store

    @property
    def prefetch(self) -> PrefetchController:
        return self.tiers.prefetch

    @property
    def eviction(self) -> EvictionController:
        return self.tiers.eviction

    @property
    def quotas(self) -> Quotas:
        return self.tiers.quotas

    @property
    def ports(self) -> tuple[AdapterPort, ...]:
        """Those of all adapters that there are now."""
        return self.tier.ports

    @property
    def l2_evictions(self) -> tuple[L2Eviction, ...]:
        return self.tier.evictions

    # --- engines

    @property
    def workers(self) -> Registrations:
        return self.engine_port.workers

    @property
    def prompts(self) -> PromptMemory:
        return self.engine_port.prompts

    @property
    def gate(self) -> SaltGate:
        return self.engine_port.gate

    @property
    def modules(self) -> Mapping[str, RequestModule]:
        return self.engine_port.modules

    @property
    def pooled(self) -> Pool:
        return self.engine_port.pooled

    @property
    def affine(self) -> AffinePool:
        return self.engine_port.affine

    @property
    def router(self) -> Router:
        return self.engine_port.router

    @property
    def reaper(self) -> Reaper:
        return self.engine_port.reaper

    # --- operators

    @property
    def adapters(self) -> AdapterChanges:
        return self.changes.adapters

    @property
    def settings(self) -> SettingChanges:
        return self.changes.settings

    @property
    def admin(self) -> AdminServer | None:
        return self.admin_api.server

    @property
    def routes(self) -> Sequence[PluginRoute]:
        return self.admin_api.routes

    @property
    def deletions(self) -> L2Deletions:
        return self.admin_api.objects.deletions
