"""The composition root: the one file that knows everybody.  It reads like docs/architecture.md."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

import lmcache_core
from lmcache_core.admin.ports import AdminPorts
from lmcache_core.admin.server import AdminServer
from lmcache_core.admin.token import read_token
from lmcache_core.app.adapter_specs import adapter_specs
from lmcache_core.app.loaded_plugins import LoadedPlugins
from lmcache_core.app.offer_specs import OfferSpecs, offer_specs
from lmcache_core.app.open_arena import open_arena, open_growth
from lmcache_core.app.open_eviction_policy import open_eviction_policy
from lmcache_core.app.open_l2 import open_l2
from lmcache_core.app.open_modules import open_request_modules
from lmcache_core.app.open_subscribers import open_subscribers
from lmcache_core.app.quota_setting import quota_bytes
from lmcache_core.app.server import Parts, Server
from lmcache_core.app.settings import ServerSettings
from lmcache_core.contracts.clock import Clock, SystemClock
from lmcache_core.contracts.context import AdapterContext
from lmcache_core.contracts.policies import PrefetchPolicy, StorePolicy
from lmcache_core.contracts.request_module import ModuleContext, RequestModule
from lmcache_core.contracts.server_info import ServerInfo
from lmcache_core.controllers.adapter_port import AdapterPort
from lmcache_core.controllers.completion_thread import CompletionThread
from lmcache_core.controllers.eviction import EvictionController
from lmcache_core.controllers.prefetch import PrefetchController
from lmcache_core.controllers.quota import Quotas
from lmcache_core.controllers.store import StoreController
from lmcache_core.controllers.store_queue import StoreLimits
from lmcache_core.controllers.store_waiting import DropRule
from lmcache_core.controllers.supervisor import Supervisor
from lmcache_core.events.bus import EventBus
from lmcache_core.kernels.choice import Kernels, choose_kernels
from lmcache_core.l1.arena import Arena
from lmcache_core.l1.cache import L1Cache
from lmcache_core.model.keys import HashChain
from lmcache_core.server.hash_chain import open_chain
from lmcache_core.server.hasher import PromptHasher
from lmcache_core.server.key_reader import KeyReader
from lmcache_core.server.pools import AffinePool, Pool
from lmcache_core.server.prompt_memory import PromptMemory
from lmcache_core.server.reaper import Reaper
from lmcache_core.server.registrations import Registrations
from lmcache_core.server.router import Router
from lmcache_core.server.salt_gate import SaltGate
from lmcache_core.storage.manager import StorageManager
from lmcache_core.wire.messages import EngineKey

logger = logging.getLogger(__name__)

GIB = 2**30
MIB = 2**20
REAPER_PERIOD_SECONDS = 1.0
HASH_SEED = "vllm-none-hash"
"""Seed of the sha256_cbor chain where PYTHONHASHSEED is not set (docs/engine-protocol.md, "Chunk hashes")."""


@dataclass(frozen=True, slots=True)
class _Common:
    """What all parts are given."""

    settings: ServerSettings
    plugins: LoadedPlugins
    offers: OfferSpecs
    kernels: Kernels
    clock: Clock
    bus: EventBus
    undo: ExitStack


class _Tiers(NamedTuple):
    cache: L1Cache
    store: StoreController
    prefetch: PrefetchController
    eviction: EvictionController
    quotas: Quotas
    storage: StorageManager


class _EnginePort(NamedTuple):
    workers: Registrations
    prompts: PromptMemory
    gate: SaltGate
    modules: Mapping[str, RequestModule]
    pooled: Pool
    affine: AffinePool
    router: Router
    endpoint: str


def build(settings: ServerSettings, plugins: LoadedPlugins) -> Server:
    """Make every part and open every resource, in the order in which they need each other; nothing runs before
    `Server.start`.  Raises LMCacheError, with everything given back, when something cannot be had."""
    boot_id = uuid.uuid4().hex
    instance_id = settings.instance_id or str(uuid.uuid4())
    # safe mode imports nothing but core, unless it is told to
    kernels = choose_kernels("off" if settings.safe_mode and settings.native == "auto" else settings.native)
    adapters, offers = adapter_specs(settings.l2_adapter, plugins), offer_specs(settings, plugins)

    with ExitStack() as undo:
        bus = EventBus(open_subscribers(offers.subscribers, plugins), settings.event_bus_queue_size)
        common = _Common(settings, plugins, offers, kernels, SystemClock(), bus, undo)
        arena = open_arena(settings, boot_id)
        undo.callback(arena.close)
        context = AdapterContext(
            name="",
            instance_id=instance_id,
            boot_id=boot_id,
            regions=(arena.region,),
            align_bytes=settings.l1_align_bytes,
            clock=common.clock,
            events=bus,
            logger=logger,
        )
        ports, l2_evictions = open_l2(adapters, plugins, context, settings.l2_timeout_seconds, kernels, undo)
        tiers = _open_tiers(common, arena, ports)
        engine_port = _open_engine_port(common, arena, tiers.storage)

        # The admin API answers with what the server says of itself, and the server owns the admin API.
        running: list[Server] = []
        admin = _open_admin(
            settings,
            AdminPorts(lambda: running[0].status(), lambda: running[0].health(), tiers.quotas, tiers.storage),
        )
        if admin:
            undo.callback(admin.stop)
        running.append(
            Server(
                Parts(
                    info=ServerInfo(
                        instance_id=instance_id,
                        boot_id=boot_id,
                        engine_endpoint=engine_port.endpoint,
                        http_endpoint=admin.endpoint if admin else None,
                        chunk_tokens=settings.chunk_size,
                        version=lmcache_core.__version__,
                    ),
                    plugins=plugins,
                    policies={
                        "eviction": offers.eviction_policy.name,
                        "store": offers.store_policy.name,
                        "prefetch": offers.prefetch_policy.name,
                    },
                    kernels=kernels,
                    arena=arena,
                    growth=open_growth(settings, arena, common.clock),
                    storage=tiers.storage,
                    store=tiers.store,
                    prefetch=tiers.prefetch,
                    eviction=tiers.eviction,
                    quotas=tiers.quotas,
                    gate=engine_port.gate,
                    ports=ports,
                    l2_evictions=l2_evictions,
                    completions=CompletionThread(ports, common.clock),
                    bus=bus,
                    workers=engine_port.workers,
                    modules=engine_port.modules,
                    router=engine_port.router,
                    pooled=engine_port.pooled,
                    affine=engine_port.affine,
                    prompts=engine_port.prompts,
                    reaper=Reaper(
                        REAPER_PERIOD_SECONDS,
                        (engine_port.workers.reap, tiers.storage.expire, engine_port.prompts.expire),
                    ),
                    supervisor=Supervisor(),
                    admin=admin,
                )
            )
        )
        undo.pop_all()
        return running[0]


def _open_tiers(common: _Common, arena: Arena, ports: Sequence[AdapterPort]) -> _Tiers:
    """L1, what moves objects between it and L2, and the verbs over both."""
    settings, plugins, offers = common.settings, common.plugins, common.offers
    clock, bus = common.clock, common.bus
    cache = L1Cache(arena, settings.l1_align_bytes, common.kernels)
    store = StoreController(
        cache,
        ports,
        offers.store_policy.open_as(StorePolicy, plugins),
        StoreLimits(_backlog(settings), settings.l2_store_max_backlog_seconds, DropRule(settings.l2_store_drop)),
        clock,
        bus,
    )
    prefetch = PrefetchController(
        cache,
        ports,
        offers.prefetch_policy.open_as(PrefetchPolicy, plugins),
        settings.l2_prefetch_max_in_flight,
        clock,
        bus,
        lookup_timeout_seconds=settings.lookup_timeout_seconds,
        l1_max_bytes=int(arena.size_bytes * settings.l1_prefetch_max_ratio),
    )
    policy = open_eviction_policy(offers.eviction_policy, plugins, common.kernels)
    quotas = Quotas(cache, offers.eviction_policy.name, policy.isolates_salts, bus)
    quotas.begin(quota_bytes(settings.quota), _bytes(settings.default_quota_gb))
    eviction = EvictionController(cache, policy, settings.eviction_trigger_watermark, settings.eviction_ratio, bus)
    storage = StorageManager(
        cache,
        store,
        prefetch,
        settings.l1_read_ttl_seconds,
        settings.l1_write_ttl_seconds,
        clock,
        bus,
        settings.l1_allocation_wait_ms / 1000,
    )
    return _Tiers(cache, store, prefetch, eviction, quotas, storage)


def _open_engine_port(common: _Common, arena: Arena, storage: StorageManager) -> _EnginePort:
    """Who answers engines, and the port that is bound for them."""
    settings, clock, bus, undo = common.settings, common.clock, common.bus, common.undo
    workers = Registrations(
        storage.end_worker,
        settings.worker_reap_timeout_seconds,
        settings.worker_registration_grace_seconds,
        clock,
        bus,
    )
    kind = HashChain.named(settings.hash_algorithm)
    chain = open_chain(kind, settings.chunk_size, os.environ.get("PYTHONHASHSEED", HASH_SEED), common.kernels)
    prompts = PromptMemory(settings.session_ttl_seconds, clock)
    gate = SaltGate(settings.reject_unsalted, clock)
    context = ModuleContext(
        storage=storage,
        hasher=PromptHasher(chain, prompts),
        workers=workers,
        chunk_tokens=settings.chunk_size,
        chain=kind,
        segment=arena.segment,
        l1_bytes=arena.size_bytes,
        clock=clock,
        events=bus,
        admits_salt=gate.admits,
    )
    opened = open_request_modules(common.offers.request_modules, common.plugins, context)
    for module in opened.modules.values():
        undo.callback(module.close)
    pooled = Pool("pooled", settings.max_cpu_workers or settings.max_workers)
    affine = AffinePool("affine", settings.max_gpu_workers or settings.max_workers)
    readers = {EngineKey: KeyReader(chain, prompts)}
    router = Router(opened.handlers, pooled, affine, settings.max_message_mb * MIB, clock, readers)
    undo.callback(router.close)
    endpoint = router.bind(settings.host, settings.port)
    return _EnginePort(workers, prompts, gate, opened.modules, pooled, affine, router, endpoint)


def _backlog(settings: ServerSettings) -> int:
    gigabytes = settings.l2_store_max_backlog_gb
    return int((settings.l1_size_gb / 2 if gigabytes is None else gigabytes) * GIB)


def _bytes(gigabytes: float | None) -> int | None:
    return None if gigabytes is None else round(gigabytes * GIB)


def _open_admin(settings: ServerSettings, ports: AdminPorts) -> AdminServer | None:
    if not settings.http_enabled:
        return None
    token = read_token(settings.http_token_file) if settings.http_token_file else None
    return AdminServer(settings.http_host, settings.http_port, token, ports)
