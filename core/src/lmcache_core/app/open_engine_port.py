"""Who answers engines, and the port that is bound for them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from lmcache_core.app.common_parts import CommonParts
from lmcache_core.app.module_flags import operation_remedies
from lmcache_core.app.open_modules import open_request_modules
from lmcache_core.contracts.request_module import ModuleContext, RequestModule
from lmcache_core.l1.arena import Arena
from lmcache_core.model.keys import HashChain
from lmcache_core.serde.known_layouts import KnownLayouts
from lmcache_core.server.chunk_addresses import ChunkAddresses
from lmcache_core.server.hash_chain import open_chain
from lmcache_core.server.hasher import PromptHasher
from lmcache_core.server.key_reader import KeyReader
from lmcache_core.server.pools import AffinePool, Pool
from lmcache_core.server.prompt_memory import PromptMemory
from lmcache_core.server.registrations import Registrations
from lmcache_core.server.router import Router
from lmcache_core.server.salt_gate import SaltGate
from lmcache_core.server.unhandled import UnhandledRequests
from lmcache_core.storage.manager import StorageManager
from lmcache_core.wire.messages import EngineKey

MIB = 2**20
HASH_SEED = "vllm-none-hash"
"""Seed of the sha256_cbor chain where PYTHONHASHSEED is not set (docs/engine-protocol.md, "Chunk hashes")."""


class EnginePort(NamedTuple):
    workers: Registrations
    prompts: PromptMemory
    gate: SaltGate
    addresses: ChunkAddresses
    modules: Mapping[str, RequestModule]
    pooled: Pool
    affine: AffinePool
    router: Router
    endpoint: str


def open_engine_port(
    common: CommonParts,
    arena: Arena,
    storage: StorageManager,
    layouts: KnownLayouts,
    instance_id: str,
    boot_id: str,
) -> EnginePort:
    """Who answers engines, and the port that is bound for them."""
    settings, clock, bus, undo = common.settings, common.clock, common.bus, common.undo
    workers = Registrations(
        storage.end_worker,
        settings.worker_reap_timeout_seconds,
        settings.worker_registration_grace_seconds,
        clock,
        bus,
        layouts.learn,
    )
    kind = HashChain.named(settings.hash_algorithm)
    chain = open_chain(kind, settings.chunk_size, os.environ.get("PYTHONHASHSEED", HASH_SEED), common.kernels)
    prompts = PromptMemory(settings.session_ttl_seconds, clock)
    gate = SaltGate(settings.reject_unsalted, clock)
    operations: list[str] = []
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
        instance_id=instance_id,
        boot_id=boot_id,
        operations=lambda: operations,
        region=arena.region,
    )
    opened = open_request_modules(common.offers.request_modules, common.plugins, context)
    for module in opened.modules.values():
        undo.callback(module.close)
    operations += sorted(handler.operation.name for handler in opened.handlers)
    pooled = Pool("pooled", settings.max_cpu_workers or settings.max_workers)
    affine = AffinePool("affine", settings.max_gpu_workers or settings.max_workers)
    readers = {EngineKey: KeyReader(chain, prompts)}
    unhandled = UnhandledRequests(operation_remedies(common.plugins))
    router = Router(opened.handlers, pooled, affine, settings.max_message_mb * MIB, clock, readers, bus, unhandled)
    undo.callback(router.close)
    endpoint = router.bind(settings.host, settings.port)
    return EnginePort(workers, prompts, gate, ChunkAddresses(context), opened.modules, pooled, affine, router, endpoint)
