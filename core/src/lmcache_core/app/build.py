"""The composition root: the one file that knows everybody.  It reads like docs/architecture.md."""

from __future__ import annotations

import logging
import os
import uuid
from contextlib import ExitStack
from typing import Any

import lmcache_core
from lmcache_core.admin.server import AdminServer
from lmcache_core.admin.token import read_token
from lmcache_core.app.adapter_specs import adapter_specs
from lmcache_core.app.loaded_plugins import LoadedPlugins
from lmcache_core.app.offer_specs import offer_specs
from lmcache_core.app.open_adapter import open_adapter
from lmcache_core.app.open_modules import open_request_modules
from lmcache_core.app.open_subscribers import open_subscribers
from lmcache_core.app.server import ADAPTER_CLOSE_SECONDS, Parts, Server
from lmcache_core.app.settings import ServerSettings
from lmcache_core.contracts.clock import SystemClock
from lmcache_core.contracts.context import AdapterContext
from lmcache_core.contracts.policies import EvictionPolicy, PrefetchPolicy, StorePolicy
from lmcache_core.contracts.request_module import ModuleContext
from lmcache_core.contracts.server_info import ServerInfo
from lmcache_core.controllers.adapter_port import AdapterPort, CompletionThread
from lmcache_core.controllers.eviction import EvictionController
from lmcache_core.controllers.prefetch import PrefetchController
from lmcache_core.controllers.store import StoreController
from lmcache_core.controllers.supervisor import Supervisor
from lmcache_core.events.bus import EventBus
from lmcache_core.l1.arena import Arena, anonymous_arena, remove_stale_segments, shared_arena, shared_memory_shortage
from lmcache_core.l1.cache import L1Cache
from lmcache_core.model.errors import ResourceError
from lmcache_core.model.keys import HashChain
from lmcache_core.server.hasher import Chain, SessionHasher
from lmcache_core.server.pools import AffinePool, Pool
from lmcache_core.server.reaper import Reaper
from lmcache_core.server.registrations import Registrations
from lmcache_core.server.router import Router
from lmcache_core.storage.manager import StorageManager

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
    instance_id = settings.instance_id or str(uuid.uuid4())
    chain = HashChain.named(settings.hash_algorithm)
    supervisor = Supervisor()
    adapters, offers = adapter_specs(settings.l2_adapter, plugins), offer_specs(settings, plugins)

    with ExitStack() as undo:
        bus = EventBus(open_subscribers(offers.subscribers, plugins), settings.event_bus_queue_size)
        arena = _arena(settings, boot_id)
        undo.callback(arena.close)
        cache = L1Cache(arena, settings.l1_align_bytes)

        ports = []
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
        completions = CompletionThread(ports, clock)

        store = StoreController(
            cache,
            ports,
            offers.store_policy.open_as(StorePolicy, plugins),
            _backlog(settings),
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
        )
        eviction = EvictionController(
            cache,
            offers.eviction_policy.open_as(EvictionPolicy, plugins),
            settings.eviction_trigger_watermark,
            settings.eviction_ratio,
            bus,
        )
        storage = StorageManager(
            cache, store, prefetch, settings.l1_read_ttl_seconds, settings.l1_write_ttl_seconds, clock, bus
        )

        workers = Registrations(
            storage.end_worker,
            settings.worker_reap_timeout_seconds,
            settings.worker_registration_grace_seconds,
            clock,
            bus,
        )
        hasher = SessionHasher(
            Chain(chain, settings.chunk_size, os.environ.get("PYTHONHASHSEED", HASH_SEED)),
            settings.session_ttl_seconds,
            clock,
        )
        context_of_modules = ModuleContext(
            storage=storage,
            hasher=hasher,
            workers=workers,
            chunk_tokens=settings.chunk_size,
            chain=chain,
            segment=arena.segment,
            l1_bytes=arena.size_bytes,
            clock=clock,
            events=bus,
        )
        opened = open_request_modules(offers.request_modules, plugins, context_of_modules)
        for module in opened.modules.values():
            undo.callback(module.close)
        pooled = Pool("pooled", settings.max_cpu_workers or settings.max_workers)
        affine = AffinePool("affine", settings.max_gpu_workers or settings.max_workers)
        router = Router(opened.handlers, pooled, affine, settings.max_message_mb * MIB, clock)
        undo.callback(router.close)
        endpoint = router.bind(settings.host, settings.port)
        reaper = Reaper(REAPER_PERIOD_SECONDS, (workers.reap, storage.expire, hasher.expire))

        # The admin API answers with what the server says of itself, and the server owns the admin API.
        running: list[Server] = []
        admin = _admin(settings, lambda: running[0].status(), lambda: running[0].health())
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
                    arena=arena,
                    storage=storage,
                    store=store,
                    prefetch=prefetch,
                    eviction=eviction,
                    ports=ports,
                    completions=completions,
                    bus=bus,
                    workers=workers,
                    modules=opened.modules,
                    router=router,
                    pooled=pooled,
                    affine=affine,
                    reaper=reaper,
                    supervisor=supervisor,
                    admin=admin,
                )
            )
        )
        undo.pop_all()
        return running[0]


def _arena(settings: ServerSettings, boot_id: str) -> Arena:
    """Shared memory if it can be had, or anonymous memory and a warning that names the remedy."""
    size = max(MIB, int(settings.l1_size_gb * GIB) // settings.l1_align_bytes * settings.l1_align_bytes)
    if not settings.l1_shared_memory:
        return anonymous_arena(size)
    remove_stale_segments()
    if shortage := shared_memory_shortage(size):
        logger.warning("l1 is not shared memory, engines get their chunks over the engine port reason=%s", shortage)
        return anonymous_arena(size)
    arena = shared_arena(size, settings.shm_name or boot_id)
    if not settings.l1_use_lazy and not arena.back(0, size):
        arena.close()
        raise ResourceError(
            f"L1 of {settings.l1_size_gb} GiB cannot be allocated at once, the shared-memory file system is full; "
            "lower l1_size_gb, or leave out --no-l1-use-lazy"
        )
    return arena


def _backlog(settings: ServerSettings) -> int:
    gigabytes = settings.l2_store_max_backlog_gb
    return int((settings.l1_size_gb / 2 if gigabytes is None else gigabytes) * GIB)


def _admin(settings: ServerSettings, status: Any, health: Any) -> AdminServer | None:
    if not settings.http_enabled:
        return None
    token = read_token(settings.http_token_file) if settings.http_token_file else None
    return AdminServer(settings.http_host, settings.http_port, token, status, health)
