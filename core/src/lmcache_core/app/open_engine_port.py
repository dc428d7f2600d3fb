"""Who answers engines, and the port that is bound for them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from lmcache_client.engine_key import EngineKey
from lmcache_core.app.common_parts import CommonParts
from lmcache_core.app.offer_specs import operation_remedy
from lmcache_core.app.open_modules import open_request_modules
from lmcache_core.app.open_tiers import Tiers
from lmcache_core.contracts.request_module import ModuleContext, RequestModule
from lmcache_core.model.keys import HashChain
from lmcache_core.server.calls import UnhandledRequests
from lmcache_core.server.chunk_addresses import ChunkAddresses
from lmcache_core.server.chunk_hashing import KeyReader, PromptHasher, open_chain
from lmcache_core.server.engine_socket import EngineSocket
from lmcache_core.server.handshakes import Handshakes
from lmcache_core.server.peers import EngineUsers
from lmcache_core.server.prompt_memory import PromptMemory
from lmcache_core.server.registrations import ROUND_SECONDS, Registrations
from lmcache_core.server.request_fields import SaltGate
from lmcache_core.server.router import Router
from lmcache_core.server.threads import Pool, Reaper

MIB = 2**20
CPUINFO: Final = Path("/proc/cpuinfo")
HASH_SEED = "vllm-none-hash"
"""Seed of the sha256_cbor chain where PYTHONHASHSEED is not set (docs/internals/engine-protocol.md, "Chunk hashes")."""


class EnginePort(msgspec.Struct, frozen=True, eq=False):
    workers: Registrations
    prompts: PromptMemory
    gate: SaltGate
    addresses: ChunkAddresses
    modules: Mapping[str, RequestModule]
    pooled: Pool
    affine: Pool
    router: Router
    handshakes: Handshakes
    reaper: Reaper
    hasher: PromptHasher
    endpoint: str
    """Empty: the port is not open, and nothing listens."""

    def threads(self) -> Iterator[tuple[str, Callable[[], None]]]:
        """Names and bodies of those that answer engines."""
        for pool in (self.pooled, self.affine):
            yield from ((f"{pool.name}-{i}", pool.body(i)) for i in range(pool.size))
        yield from (("handshakes", self.handshakes.run), ("router", self.router.run))

    def stop(self, seconds: float) -> bool:
        """Answer what has arrived, and end the threads.  False where that takes longer."""
        self.router.stop()
        if not self.endpoint:
            self.handshakes.close()  # whose thread does that otherwise
        is_closed = not self.endpoint or self.router.wait_closed(seconds)
        for part in (self.pooled, self.affine, self.reaper):
            part.stop()
        return is_closed


def open_engine_port(common: CommonParts, tiers: Tiers, is_served: bool) -> EnginePort:
    """Modules and port are closed by `common.undo`.  Raises LMCacheError."""
    settings, clock, bus, undo = common.settings, common.clock, common.bus, common.undo
    port = EngineSocket(settings.max_message_mb * MIB, clock, settings.send_patience_seconds)
    undo.callback(port.close)
    workers = _registrations(common, tiers, port)
    kind = HashChain.named(settings.hash_algorithm)
    chain = open_chain(kind, settings.chunk_size, os.environ.get("PYTHONHASHSEED", HASH_SEED), common.kernels)
    prompts = PromptMemory(settings.session_ttl_seconds, clock)
    gate = SaltGate(settings.reject_unsalted, clock)
    hasher = PromptHasher(chain, prompts)
    operations: list[str] = []
    features: list[str] = []
    context = ModuleContext(
        storage=tiers.storage,
        hasher=hasher,
        workers=workers,
        chunk_tokens=settings.chunk_size,
        chain=kind,
        segment=tiers.arena.segment,
        l1_bytes=tiers.arena.size_bytes,
        clock=clock,
        events=bus,
        admits_salt=gate.admits,
        instance_id=common.instance_id,
        boot_id=common.boot_id,
        operations=lambda: operations,
        features=lambda: features,
        residency=next(feed for feed in tiers.feeds() if feed.name == "l1"),
        worker_timeout_seconds=settings.worker_reap_timeout_seconds,
        region=tiers.arena.region,
        has_amx=_has_amx(),
    )
    opened = open_request_modules(common.offers.request_modules, common.plugins, context, undo)
    operations += sorted(handler.operation.name for handler in opened.handlers)
    features += sorted({feature for module in opened.modules.values() for feature in module.features})
    pooled = Pool("pooled", settings.max_cpu_workers or settings.max_workers, shares_queue=True)
    affine = Pool("affine", settings.max_gpu_workers or settings.max_workers)
    readers = {EngineKey: KeyReader(chain, prompts)}
    unhandled = UnhandledRequests(partial(operation_remedy, common.plugins))
    router = Router(opened.handlers, pooled, affine, port, clock, readers, bus, unhandled)
    undo.callback(router.close)
    handshakes = Handshakes(port, EngineUsers.named(settings.engine_users), clock)
    undo.callback(handshakes.close)
    return EnginePort(
        workers=workers,
        prompts=prompts,
        gate=gate,
        addresses=ChunkAddresses(context),
        modules=opened.modules,
        pooled=pooled,
        affine=affine,
        router=router,
        handshakes=handshakes,
        reaper=Reaper(ROUND_SECONDS, (workers.reap, tiers.storage.expire, prompts.expire)),
        hasher=hasher,
        endpoint=router.bind(settings.host, settings.port) if is_served else "",
    )


def _registrations(common: CommonParts, tiers: Tiers, port: EngineSocket) -> Registrations:
    settings = common.settings
    return Registrations(
        tiers.storage,
        port.is_connected,
        settings.worker_reap_timeout_seconds,
        settings.worker_registration_grace_seconds,
        common.clock,
        common.bus,
        tiers.opener.layouts.learn,
    )


def _has_amx() -> bool:
    """By the flags of the first processor: all of a machine have the same."""
    try:
        with CPUINFO.open() as lines:
            flags = next((line for line in lines if line.startswith("flags")), "")
    except OSError:
        return False
    return "amx_tile" in flags.split()
