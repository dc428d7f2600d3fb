"""The composition root: the one file that knows everybody.  It reads like docs/architecture.md."""

from __future__ import annotations

import logging
import os
import uuid
from contextlib import ExitStack

import lmcache_core
from lmcache_core.admin.ports import AdminPorts
from lmcache_core.admin.server import AdminServer
from lmcache_core.admin.token import read_token
from lmcache_core.app.adapter_specs import adapter_specs
from lmcache_core.app.loaded_plugins import LoadedPlugins
from lmcache_core.app.offer_specs import offer_specs
from lmcache_core.app.open_adapter import open_adapter
from lmcache_core.app.open_arena import open_arena, open_growth
from lmcache_core.app.open_l2_eviction import L2Eviction, open_l2_eviction
from lmcache_core.app.open_modules import open_request_modules
from lmcache_core.app.open_subscribers import open_subscribers
from lmcache_core.app.quota_setting import quota_bytes
from lmcache_core.app.server import ADAPTER_CLOSE_SECONDS, Parts, Server
from lmcache_core.app.settings import ServerSettings
from lmcache_core.contracts.clock import SystemClock
from lmcache_core.contracts.context import AdapterContext
from lmcache_core.contracts.policies import EvictionPolicy, PrefetchPolicy, StorePolicy
from lmcache_core.contracts.request_module import ModuleContext
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


def build(settings: ServerSettings, plugins: LoadedPlugins) -> Server:
    """Make every part and open every resource, in the order in which they need each other; nothing runs before
    `Server.start`.  Raises LMCacheError, with everything given back, when something cannot be had."""
    clock = SystemClock()
    boot_id = uuid.uuid4().hex
    # safe mode imports nothing but core, unless it is told to
    kernels = choose_kernels("off" if settings.safe_mode and settings.native == "auto" else settings.native)
    instance_id = settings.instance_id or str(uuid.uuid4())
    chain = HashChain.named(settings.hash_algorithm)
    supervisor = Supervisor()
    adapters, offers = adapter_specs(settings.l2_adapter, plugins), offer_specs(settings, plugins)

    with ExitStack() as undo:
        bus = EventBus(open_subscribers(offers.subscribers, plugins), settings.event_bus_queue_size)
        arena = open_arena(settings, boot_id)
        undo.callback(arena.close)
        growth = open_growth(settings, arena, clock)
        cache = L1Cache(arena, settings.l1_align_bytes, kernels)

        ports: list[AdapterPort] = []
        l2_evictions: list[L2Eviction] = []
        for index, spec in enumerate(adapters):
            context = AdapterContext(
                name=spec.name,
                instance_id=instance_id,
                boot_id=boot_id,
                regions=(arena.region,),
                align_bytes=settings.l1_align_bytes,
                clock=clock,
                events=bus,
                logger=logging.getLogger(f"lmcache.l2.{spec.name}"),
            )
            adapter = open_adapter(spec.offer.name, spec.settings, plugins, context)
            port = AdapterPort(index, spec.name, adapter, adapter.capabilities, clock, settings.l2_timeout_seconds)
            undo.callback(port.close, ADAPTER_CLOSE_SECONDS)
            ports.append(port)
            if spec.eviction:
                l2_evictions.append(open_l2_eviction(spec.eviction, port, plugins, clock, bus))
        completions = CompletionThread(ports, clock)

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
        eviction_policy = offers.eviction_policy.open_as(EvictionPolicy, plugins)
        _tell_kernels(eviction_policy, kernels)
        quotas = Quotas(cache, offers.eviction_policy.name, eviction_policy.isolates_salts, bus)
        quotas.begin(quota_bytes(settings.quota), _bytes(settings.default_quota_gb))
        eviction = EvictionController(
            cache,
            eviction_policy,
            settings.eviction_trigger_watermark,
            settings.eviction_ratio,
            bus,
        )
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

        workers = Registrations(
            storage.end_worker,
            settings.worker_reap_timeout_seconds,
            settings.worker_registration_grace_seconds,
            clock,
            bus,
        )
        prompt_chain = open_chain(chain, settings.chunk_size, os.environ.get("PYTHONHASHSEED", HASH_SEED), kernels)
        prompts = PromptMemory(settings.session_ttl_seconds, clock)
        gate = SaltGate(settings.reject_unsalted, clock)
        context_of_modules = ModuleContext(
            storage=storage,
            hasher=PromptHasher(prompt_chain, prompts),
            workers=workers,
            chunk_tokens=settings.chunk_size,
            chain=chain,
            segment=arena.segment,
            l1_bytes=arena.size_bytes,
            clock=clock,
            events=bus,
            admits_salt=gate.admits,
        )
        opened = open_request_modules(offers.request_modules, plugins, context_of_modules)
        for module in opened.modules.values():
            undo.callback(module.close)
        pooled = Pool("pooled", settings.max_cpu_workers or settings.max_workers)
        affine = AffinePool("affine", settings.max_gpu_workers or settings.max_workers)
        readers = {EngineKey: KeyReader(prompt_chain, prompts)}
        router = Router(opened.handlers, pooled, affine, settings.max_message_mb * MIB, clock, readers)
        undo.callback(router.close)
        endpoint = router.bind(settings.host, settings.port)
        reaper = Reaper(REAPER_PERIOD_SECONDS, (workers.reap, storage.expire, prompts.expire))

        # The admin API answers with what the server says of itself, and the server owns the admin API.
        running: list[Server] = []
        ports_of_admin = AdminPorts(lambda: running[0].status(), lambda: running[0].health(), quotas, storage)
        admin = _admin(settings, ports_of_admin)
        if admin:
            undo.callback(admin.stop)
        info = ServerInfo(
            instance_id=instance_id,
            boot_id=boot_id,
            engine_endpoint=endpoint,
            http_endpoint=admin.endpoint if admin else None,
            chunk_tokens=settings.chunk_size,
            version=lmcache_core.__version__,
        )
        running.append(
            Server(
                Parts(
                    info=info,
                    plugins=plugins,
                    policies={
                        "eviction": offers.eviction_policy.name,
                        "store": offers.store_policy.name,
                        "prefetch": offers.prefetch_policy.name,
                    },
                    kernels=kernels,
                    arena=arena,
                    growth=growth,
                    storage=storage,
                    store=store,
                    prefetch=prefetch,
                    eviction=eviction,
                    quotas=quotas,
                    gate=gate,
                    ports=ports,
                    l2_evictions=l2_evictions,
                    completions=completions,
                    bus=bus,
                    workers=workers,
                    modules=opened.modules,
                    router=router,
                    pooled=pooled,
                    affine=affine,
                    prompts=prompts,
                    reaper=reaper,
                    supervisor=supervisor,
                    admin=admin,
                )
            )
        )
        undo.pop_all()
        return running[0]


def _tell_kernels(policy: EvictionPolicy, kernels: Kernels) -> None:
    try:
        policy.use_kernels(kernels)
    except Exception:  # a plugin boundary: it works without having been told
        logger.exception("eviction policy failed to take the kernels, and goes on without")


def _backlog(settings: ServerSettings) -> int:
    gigabytes = settings.l2_store_max_backlog_gb
    return int((settings.l1_size_gb / 2 if gigabytes is None else gigabytes) * GIB)


def _bytes(gigabytes: float | None) -> int | None:
    return None if gigabytes is None else round(gigabytes * GIB)


def _admin(settings: ServerSettings, ports: AdminPorts) -> AdminServer | None:
    if not settings.http_enabled:
        return None
    token = read_token(settings.http_token_file) if settings.http_token_file else None
    return AdminServer(settings.http_host, settings.http_port, token, ports)
