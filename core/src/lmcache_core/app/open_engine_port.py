"""Who answers engines, and the port that is bound for them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from lmcache_client.engine_key import EngineKey
from lmcache_core.app.common_parts import CommonParts
from lmcache_core.app.offer_specs import operation_remedy
from lmcache_core.app.open_modules import open_request_modules
from lmcache_core.app.open_tiers import Tiers
from lmcache_core.contracts.counts import HandshakeCounters, RouterCounters
from lmcache_core.contracts.operation import Handler
from lmcache_core.contracts.request_module import ModuleContext, RequestModule
from lmcache_core.model.keys import HashChain
from lmcache_core.server.calls import UnhandledRequests
from lmcache_core.server.chunk_addresses import ChunkAddresses
from lmcache_core.server.chunk_hashing import KeyReader, PromptHasher, open_chain
from lmcache_core.server.prompt_memory import PromptMemory
from lmcache_core.server.registrations import ROUND_SECONDS, Registrations
from lmcache_core.server.request_fields import SaltGate
from lmcache_core.server.threads import LAST_CALL_SECONDS, Pool, Reaper

if TYPE_CHECKING:
    from lmcache_core.server.handshakes import Handshakes
    from lmcache_core.server.router import Router

MIB = 2**20
CPUINFO: Final = Path("/proc/cpuinfo")
HASH_SEED = "vllm-none-hash"
"""Seed of the sha256_cbor chain where PYTHONHASHSEED is not set (docs/internals/engine-protocol.md, "Chunk hashes")."""


class EnginePort(msgspec.Struct, eq=False):
    """Who answers engines; unless the port is open, for this process alone."""

    workers: Registrations
    prompts: PromptMemory
    gate: SaltGate
    hasher: PromptHasher
    reader: KeyReader
    context: ModuleContext
    """Of modules that are not open yet."""
    addresses: ChunkAddresses
    pooled: Pool
    affine: Pool
    reaper: Reaper
    modules: Mapping[str, RequestModule] = {}
    handlers: Sequence[Handler] = ()
    router: Router | None = None
    handshakes: Handshakes | None = None
    endpoint: str = ""
    """Empty: nothing listens."""

    @property
    def requests(self) -> RouterCounters:
        return self.router.counters if self.router else RouterCounters()

    @property
    def connections(self) -> HandshakeCounters:
        return self.handshakes.counters if self.handshakes else HandshakeCounters()

    def threads(self) -> Iterator[tuple[str, Callable[[], None]]]:
        """Names and bodies of those that answer engines."""
        if self.router is None or self.handshakes is None:
            return
        for pool in (self.pooled, self.affine):
            yield from ((f"{pool.name}-{i}", pool.body(i)) for i in range(pool.size))
        yield from (("handshakes", self.handshakes.run), ("router", self.router.run))

    def stop(self, seconds: float) -> bool:
        """Answer what has arrived, and end the threads.  False where that takes so much longer than a last call."""
        if self.router is not None:
            self.router.stop()
        is_closed = self.router is None or self.router.wait_closed(LAST_CALL_SECONDS + seconds)
        for part in (self.pooled, self.affine, self.reaper):
            part.stop()
        return is_closed


def open_engine_port(common: CommonParts, tiers: Tiers) -> EnginePort:
    """All but modules and port, which `open_port` opens."""
    settings, clock = common.settings, common.clock
    limits = settings.worker_reap_timeout_seconds, settings.worker_registration_grace_seconds
    workers = Registrations(
        tiers.storage, lambda connection: True, *limits, clock, common.bus, tiers.opener.layouts.learn
    )
    kind = HashChain.named(settings.hash_algorithm)
    chain = open_chain(kind, settings.chunk_size, os.environ.get("PYTHONHASHSEED", HASH_SEED), common.kernels)
    prompts = PromptMemory(settings.session_ttl_seconds, clock)
    gate = SaltGate(settings.reject_unsalted, clock)
    hasher = PromptHasher(chain, prompts)
    context = ModuleContext(
        storage=tiers.storage,
        hasher=hasher,
        workers=workers,
        chunk_tokens=settings.chunk_size,
        chain=kind,
        segment=tiers.arena.segment,
        l1_bytes=tiers.arena.size_bytes,
        clock=clock,
        events=common.bus,
        admits_salt=gate.admits,
        instance_id=common.instance_id,
        boot_id=common.boot_id,
        residency=next(feed for feed in tiers.feeds() if feed.name == "l1"),
        worker_timeout_seconds=settings.worker_reap_timeout_seconds,
        region=tiers.arena.region,
        has_amx=_has_amx(),
    )
    return EnginePort(
        workers=workers,
        prompts=prompts,
        gate=gate,
        hasher=hasher,
        reader=KeyReader(chain, prompts),
        context=context,
        addresses=ChunkAddresses(context),
        pooled=Pool("pooled", settings.max_cpu_workers or settings.max_workers, shares_queue=True),
        affine=Pool("affine", settings.max_gpu_workers or settings.max_workers),
        reaper=Reaper(ROUND_SECONDS, (workers.reap, tiers.storage.expire, prompts.expire)),
    )


def open_modules(common: CommonParts, port: EnginePort, undo: ExitStack) -> None:
    """Open the request modules, which `undo` closes.  Raises LMCacheError, with `port` as it was."""
    operations, features = list[str](), list[str]()
    context = replace(port.context, operations=lambda: operations, features=lambda: features)
    undo.callback(setattr, port, "modules", {})
    port.modules, port.handlers = open_request_modules(common.offers.request_modules, common.plugins, context, undo)
    operations += sorted(handler.operation.name for handler in port.handlers)
    features += sorted({feature for module in port.modules.values() for feature in module.features})


def open_port(common: CommonParts, port: EnginePort, host: str, number: int, undo: ExitStack) -> None:
    """Open the port, and modules that are not, which `undo` closes.  Raises LMCacheError, with `port` as it was."""
    from lmcache_core.server.engine_socket import EngineSocket  # here: a cache for one process needs no ZeroMQ
    from lmcache_core.server.handshakes import Handshakes
    from lmcache_core.server.peers import EngineUsers
    from lmcache_core.server.router import Router

    settings, clock = common.settings, common.clock
    socket = EngineSocket(settings.max_message_mb * MIB, clock, settings.send_patience_seconds)
    undo.callback(socket.close)
    if not port.modules:
        open_modules(common, port, undo)
    unhandled, readers = UnhandledRequests(partial(operation_remedy, common.plugins)), {EngineKey: port.reader}
    router = Router(port.handlers, port.pooled, port.affine, socket, clock, readers, common.bus, unhandled)
    undo.callback(router.close)
    handshakes = Handshakes(socket, EngineUsers.named(settings.engine_users), clock)
    undo.callback(handshakes.close)
    port.endpoint = router.bind(host, number)
    port.workers.is_connected = socket.is_connected
    port.router, port.handshakes = router, handshakes


def _has_amx() -> bool:
    """By the flags of the first processor: all of a machine have the same."""
    with suppress(OSError), CPUINFO.open() as lines:
        return "amx_tile" in next((line for line in lines if line.startswith("flags")), "").split()
    return False
