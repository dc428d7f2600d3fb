"""The composition root: with its `open_*` files, what knows everybody.  It reads like docs/architecture.md."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import lmcache_core
from lmcache_core.admin.cache_ports import CachePorts
from lmcache_core.admin.plugin_route import PluginRoute
from lmcache_core.admin.server import AdminServer
from lmcache_core.app.adapter_specs import adapter_specs
from lmcache_core.app.common_parts import CommonParts
from lmcache_core.app.l2_tier import L2Tier
from lmcache_core.app.masking import Hidden
from lmcache_core.app.offer_specs import offer_specs
from lmcache_core.app.open_admin import admin_ports, open_admin
from lmcache_core.app.open_arena import open_arena, open_growth
from lmcache_core.app.open_engine_port import open_engine_port
from lmcache_core.app.open_http_routes import RoutesContext, open_http_routes
from lmcache_core.app.open_l2 import AdapterOpener, open_l2
from lmcache_core.app.open_subscribers import open_subscribers
from lmcache_core.app.open_tiers import Tiers, open_tiers
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.reconfigure import AdapterChanges, L2Parts
from lmcache_core.app.running_configuration import AdapterInUse
from lmcache_core.app.runtime.open_runtime_plugins import open_runtime_plugins, runtime_plugin_specs
from lmcache_core.app.server import Parts, Server
from lmcache_core.app.setting_changes import Adjustable, SettingChanges
from lmcache_core.app.settings import ServerSettings
from lmcache_core.app.shown_settings import all_secrets
from lmcache_core.contracts.clock import SystemClock
from lmcache_core.contracts.context import AdapterContext
from lmcache_core.contracts.server_info import ServerInfo
from lmcache_core.controllers.completion_thread import CompletionThread
from lmcache_core.controllers.supervisor import Supervisor
from lmcache_core.events.bus import EventBus
from lmcache_core.events.lane import LaneLimits
from lmcache_core.kernels.choice import choose_kernels
from lmcache_core.l1.arena import Arena
from lmcache_core.serde.known_layouts import KnownLayouts
from lmcache_core.server.chunk_addresses import ChunkAddresses
from lmcache_core.server.reaper import Reaper
from lmcache_core.server.salt_gate import SaltGate
from lmcache_core.storage.l2_deletions import L2Deletions
from lmcache_core.storage.l2_keys import L2Keys
from lmcache_core.storage.manager import StorageManager

logger = logging.getLogger(__name__)

REAPER_PERIOD_SECONDS = 1.0
SUBSCRIBERS_CLOSE_SECONDS = 2.0
"""How long subscribers may take to close where the server cannot be built."""


class _Changes(NamedTuple):
    """What an operator may change while the server runs."""

    adapters: AdapterChanges
    settings: SettingChanges


def build(settings: ServerSettings, plugins: LoadedPlugins, hidden: Hidden | None = None) -> Server:
    """Make every part and open every resource, in the order in which they need each other; nothing runs before
    `Server.start`.  `hidden` is told the secrets of the configuration, and those that come later.  Raises LMCacheError,
    with everything given back, when something cannot be had."""
    hidden = hidden or Hidden()
    hidden.learn(all_secrets(settings, plugins, os.environ))
    boot_id = uuid.uuid4().hex
    instance_id = settings.instance_id or str(uuid.uuid4())
    # safe mode imports nothing but core, unless it is told to
    kernels = choose_kernels("off" if settings.safe_mode and settings.native == "auto" else settings.native)
    adapters, offers = adapter_specs(settings.l2_adapter, plugins), offer_specs(settings, plugins)
    programs = runtime_plugin_specs(settings, os.environ)

    with ExitStack() as undo:
        subscribers = open_subscribers(offers.subscribers, plugins)
        bus = EventBus(subscribers, _lane_limits(settings))
        undo.callback(bus.close, SUBSCRIBERS_CLOSE_SECONDS)
        common = CommonParts(settings, plugins, offers, kernels, SystemClock(), bus, undo)
        arena = open_arena(settings, boot_id, instance_id)
        undo.callback(arena.close)
        layouts = KnownLayouts()
        context = _adapter_context(common, arena, instance_id, boot_id)
        opener = AdapterOpener(plugins, context, kernels, hidden, layouts)
        tier = L2Tier(open_l2(adapters, opener, settings.l2_timeout_seconds, undo), settings.l2_timeout_seconds)
        tiers = open_tiers(common, arena, tier.ports)
        engine_port = open_engine_port(common, arena, tiers.storage, layouts, instance_id, boot_id)
        objects = _open_objects(common, tiers.storage, tier, engine_port.addresses, boot_id)

        supervisor, completions = Supervisor(), CompletionThread(tier.ports, common.clock, bus)
        changes = _Changes(
            AdapterChanges(
                tier, opener, L2Parts(tiers.store, tiers.prefetch, completions, supervisor, common.clock, bus)
            ),
            _setting_changes(common, arena, tier, tiers, engine_port.gate, hidden),
        )
        # The admin API answers with what the server says of itself, and the server owns the admin API.
        running: list[Server] = []
        routes = open_http_routes(
            offers.http_routes,
            plugins,
            RoutesContext(lambda: running[0].view, {name: asked.own for name, asked in subscribers.items()}),
        )
        admin = _open_admin_api(common, tier, tiers, objects, changes, hidden, routes, lambda: running[0])
        info = ServerInfo(
            instance_id=instance_id,
            boot_id=boot_id,
            engine_endpoint=engine_port.endpoint,
            http_endpoint=admin.endpoint if admin else None,
            chunk_tokens=settings.chunk_size,
            version=lmcache_core.__version__,
        )
        running.append(
            Server(
                Parts(
                    info=info,
                    plugins=plugins,
                    runtime_plugins=open_runtime_plugins(programs, settings, plugins, info, os.environ),
                    settings=changes.settings,
                    kernels=kernels,
                    arena=arena,
                    growth=open_growth(settings, arena, common.clock),
                    cache=tiers.cache,
                    storage=tiers.storage,
                    store=tiers.store,
                    prefetch=tiers.prefetch,
                    eviction=tiers.eviction,
                    quotas=tiers.quotas,
                    gate=engine_port.gate,
                    tier=tier,
                    adapters=changes.adapters,
                    deletions=objects.deletions,
                    completions=completions,
                    bus=bus,
                    workers=engine_port.workers,
                    modules=engine_port.modules,
                    router=engine_port.router,
                    pooled=engine_port.pooled,
                    affine=engine_port.affine,
                    prompts=engine_port.prompts,
                    reaper=Reaper(
                        REAPER_PERIOD_SECONDS,
                        (engine_port.workers.reap, tiers.storage.expire, engine_port.prompts.expire, bus.watch),
                    ),
                    supervisor=supervisor,
                    admin=admin,
                    routes=routes,
                )
            )
        )
        undo.pop_all()
        return running[0]


def _adapter_context(common: CommonParts, arena: Arena, instance_id: str, boot_id: str) -> AdapterContext:
    """Of every adapter; each gets a name and a logger of its own with it."""
    return AdapterContext(
        name="",
        instance_id=instance_id,
        boot_id=boot_id,
        regions=(arena.region,),
        align_bytes=common.settings.l1_align_bytes,
        clock=common.clock,
        events=common.bus,
        logger=logger,
    )


def _setting_changes(
    common: CommonParts, arena: Arena, tier: L2Tier, tiers: Tiers, gate: SaltGate, hidden: Hidden
) -> SettingChanges:
    return SettingChanges(
        common.settings,
        Adjustable(
            tiers.storage,
            tiers.store,
            tiers.prefetch,
            tiers.eviction,
            tiers.quotas,
            gate,
            tier,
            arena.size_bytes,
            common.plugins,
            common.kernels,
            common.bus,
            hidden,
        ),
        tiers.isolates_salts,
    )


def _open_admin_api(
    common: CommonParts,
    tier: L2Tier,
    tiers: Tiers,
    objects: CachePorts,
    changes: _Changes,
    hidden: Hidden,
    routes: Sequence[PluginRoute],
    running: Callable[[], Server],
) -> AdminServer | None:
    """None without `--http`."""
    admin = open_admin(
        common.settings,
        admin_ports(
            common.settings,
            common.plugins,
            running,
            lambda: [AdapterInUse(each.port.index, each.name, each.spec.given) for each in tier.adapters],
            common.clock,
            common.bus,
            quotas=tiers.quotas,
            cache=tiers.storage,
            objects=objects,
            hidden=hidden,
            changed=changes.settings.changed,
            adapter_changes=changes.adapters,
            setting_changes=changes.settings,
        ),
        routes,
    )
    if admin:
        common.undo.callback(admin.stop)
    return admin


def _open_objects(
    common: CommonParts, storage: StorageManager, tier: L2Tier, addresses: ChunkAddresses, boot_id: str
) -> CachePorts:
    """What the admin API says of single objects, and does to them."""
    keys = L2Keys(lambda: tier.ports)
    deletions = L2Deletions(keys, common.clock)
    return CachePorts(
        storage.objects, keys, deletions, storage.pins, storage.orders, addresses, common.settings.chunk_size, boot_id
    )


def _lane_limits(settings: ServerSettings) -> LaneLimits:
    return LaneLimits(
        settings.event_bus_queue_size, settings.event_subscriber_timeout_seconds, settings.event_subscriber_cpu_ratio
    )
