"""The public door of lmcache-core: everything that a plugin author imports.

    from lmcache_core import Offer, hookimpl

    @hookimpl
    def lmcache_l2_adapters():
        return [Offer("acme", "Objects in an ACME store", settings="acme.config:AcmeSettings", open="acme.adapter:open")]

Names are imported when they are first used, so that `import lmcache_core` costs nothing and loads no library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lmcache_core.client.client import EngineClient
    from lmcache_core.contracts.buffers import LentBuffer, MemoryRegion
    from lmcache_core.contracts.capability import Capability
    from lmcache_core.contracts.clock import Clock, SystemClock
    from lmcache_core.contracts.command import CommandContext, PluginCatalog
    from lmcache_core.contracts.completion import BuffersReleased, Completion, CompletionSource, JobDone, JobId
    from lmcache_core.contracts.context import AdapterContext
    from lmcache_core.contracts.events import (
        ChunksEvicted,
        ChunksRetrieved,
        ChunksStored,
        Event,
        LeasesExpired,
        LookupFinished,
        ObjectRejected,
        ObjectsEvicted,
        PrefetchCompleted,
        PrefetchSubmitted,
        Publisher,
        QuotaChanged,
        QuotaReached,
        StoreCompleted,
        StoresDropped,
        StoreSubmitted,
        WorkerLeft,
        WorkerRegistered,
    )
    from lmcache_core.contracts.hookspecs import hookimpl
    from lmcache_core.contracts.l2_adapter import L2Adapter, LoadItem, StoreItem
    from lmcache_core.contracts.offer import Offer
    from lmcache_core.contracts.operation import DEFERRED, ELSEWHERE, Call, Handler, HandlerMode, Operation
    from lmcache_core.contracts.policies import (
        AccessFacts,
        AdapterFacts,
        EvictionDemand,
        EvictionPolicy,
        InsertFacts,
        PrefetchPlan,
        PrefetchPolicy,
        RequestFacts,
        StoredObject,
        StorePlan,
        StorePolicy,
        recompute_cost,
    )
    from lmcache_core.contracts.request_module import (
        ChunkHasher,
        ModuleContext,
        RequestModule,
        SpaceFields,
        TokenIds,
        Worker,
        Workers,
    )
    from lmcache_core.contracts.serde import Serde
    from lmcache_core.contracts.server_info import ServerInfo
    from lmcache_core.contracts.settings import PluginSettings
    from lmcache_core.contracts.storage import (
        READERS_MAX,
        Hold,
        LookupRequest,
        Shard,
        SparseLookupRequest,
        Storage,
        StoredSpace,
    )
    from lmcache_core.contracts.subscriber import Subscriber, Subscriptions
    from lmcache_core.jobs.async_adapter import AsyncL2Adapter
    from lmcache_core.jobs.blocking_adapter import BlockingL2Adapter
    from lmcache_core.jobs.byte_ledger import ByteLedger
    from lmcache_core.jobs.circuit_breaker import CircuitBreaker, CircuitState, CircuitStatus
    from lmcache_core.jobs.completion_queue import CompletionQueue
    from lmcache_core.jobs.retry import RetryBudget, RetryPolicy
    from lmcache_core.kernels.choice import Kernels
    from lmcache_core.kernels.interfaces import Recency, SlotTable
    from lmcache_core.model.bitmap import Bitmap
    from lmcache_core.model.errors import (
        AdapterError,
        ConfigError,
        DamagedObjectError,
        LMCacheError,
        PluginError,
        ProtocolError,
        ResourceError,
    )
    from lmcache_core.model.keys import HashChain, KeySpace, ObjectKey, pack_kv_rank
    from lmcache_core.model.layout import ITEM_BYTES, ObjectLayout
    from lmcache_core.model.media_path import media_path
    from lmcache_core.model.object_header import HEADER_BYTES, Check, ObjectHeader, check, inspect, seal
    from lmcache_core.model.results import KeyPage, Outcome, Usage
    from lmcache_core.wire.messages import EngineKey

_HOMES = {
    "client.client": ("EngineClient",),
    "contracts.buffers": (
        "LentBuffer",
        "MemoryRegion",
    ),
    "contracts.capability": ("Capability",),
    "contracts.clock": (
        "Clock",
        "SystemClock",
    ),
    "contracts.command": (
        "CommandContext",
        "PluginCatalog",
    ),
    "contracts.completion": (
        "BuffersReleased",
        "Completion",
        "CompletionSource",
        "JobDone",
        "JobId",
    ),
    "contracts.context": ("AdapterContext",),
    "contracts.events": (
        "ChunksEvicted",
        "ChunksRetrieved",
        "ChunksStored",
        "Event",
        "LeasesExpired",
        "LookupFinished",
        "ObjectRejected",
        "ObjectsEvicted",
        "PrefetchCompleted",
        "PrefetchSubmitted",
        "Publisher",
        "QuotaChanged",
        "QuotaReached",
        "StoreCompleted",
        "StoreSubmitted",
        "StoresDropped",
        "WorkerLeft",
        "WorkerRegistered",
    ),
    "contracts.hookspecs": ("hookimpl",),
    "contracts.l2_adapter": (
        "L2Adapter",
        "LoadItem",
        "StoreItem",
    ),
    "contracts.offer": ("Offer",),
    "contracts.operation": (
        "DEFERRED",
        "ELSEWHERE",
        "Call",
        "Handler",
        "HandlerMode",
        "Operation",
    ),
    "contracts.policies": (
        "AccessFacts",
        "AdapterFacts",
        "EvictionDemand",
        "EvictionPolicy",
        "InsertFacts",
        "PrefetchPlan",
        "PrefetchPolicy",
        "RequestFacts",
        "StorePlan",
        "StorePolicy",
        "StoredObject",
        "recompute_cost",
    ),
    "contracts.request_module": (
        "ChunkHasher",
        "ModuleContext",
        "RequestModule",
        "SpaceFields",
        "TokenIds",
        "Worker",
        "Workers",
    ),
    "contracts.serde": ("Serde",),
    "contracts.server_info": ("ServerInfo",),
    "contracts.settings": ("PluginSettings",),
    "contracts.storage": (
        "READERS_MAX",
        "Hold",
        "LookupRequest",
        "Shard",
        "SparseLookupRequest",
        "Storage",
        "StoredSpace",
    ),
    "contracts.subscriber": (
        "Subscriber",
        "Subscriptions",
    ),
    "jobs.async_adapter": ("AsyncL2Adapter",),
    "jobs.blocking_adapter": ("BlockingL2Adapter",),
    "jobs.byte_ledger": ("ByteLedger",),
    "jobs.circuit_breaker": (
        "CircuitBreaker",
        "CircuitState",
        "CircuitStatus",
    ),
    "jobs.completion_queue": ("CompletionQueue",),
    "jobs.retry": (
        "RetryBudget",
        "RetryPolicy",
    ),
    "kernels.choice": ("Kernels",),
    "kernels.interfaces": (
        "Recency",
        "SlotTable",
    ),
    "model.bitmap": ("Bitmap",),
    "model.errors": (
        "AdapterError",
        "ConfigError",
        "DamagedObjectError",
        "LMCacheError",
        "PluginError",
        "ProtocolError",
        "ResourceError",
    ),
    "model.keys": (
        "HashChain",
        "KeySpace",
        "ObjectKey",
        "pack_kv_rank",
    ),
    "model.layout": (
        "ITEM_BYTES",
        "ObjectLayout",
    ),
    "model.media_path": ("media_path",),
    "model.object_header": (
        "HEADER_BYTES",
        "Check",
        "ObjectHeader",
        "check",
        "inspect",
        "seal",
    ),
    "model.results": (
        "KeyPage",
        "Outcome",
        "Usage",
    ),
    "wire.messages": ("EngineKey",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [  # spelled out for type checkers; a test holds it against _HOMES
    "DEFERRED",
    "ELSEWHERE",
    "HEADER_BYTES",
    "ITEM_BYTES",
    "READERS_MAX",
    "AccessFacts",
    "AdapterContext",
    "AdapterError",
    "AdapterFacts",
    "AsyncL2Adapter",
    "Bitmap",
    "BlockingL2Adapter",
    "BuffersReleased",
    "ByteLedger",
    "Call",
    "Capability",
    "Check",
    "ChunkHasher",
    "ChunksEvicted",
    "ChunksRetrieved",
    "ChunksStored",
    "CircuitBreaker",
    "CircuitState",
    "CircuitStatus",
    "Clock",
    "CommandContext",
    "Completion",
    "CompletionQueue",
    "CompletionSource",
    "ConfigError",
    "DamagedObjectError",
    "EngineClient",
    "EngineKey",
    "Event",
    "EvictionDemand",
    "EvictionPolicy",
    "Handler",
    "HandlerMode",
    "HashChain",
    "Hold",
    "InsertFacts",
    "JobDone",
    "JobId",
    "Kernels",
    "KeyPage",
    "KeySpace",
    "L2Adapter",
    "LMCacheError",
    "LeasesExpired",
    "LentBuffer",
    "LoadItem",
    "LookupFinished",
    "LookupRequest",
    "MemoryRegion",
    "ModuleContext",
    "ObjectHeader",
    "ObjectKey",
    "ObjectLayout",
    "ObjectRejected",
    "ObjectsEvicted",
    "Offer",
    "Operation",
    "Outcome",
    "PluginCatalog",
    "PluginError",
    "PluginSettings",
    "PrefetchCompleted",
    "PrefetchPlan",
    "PrefetchPolicy",
    "PrefetchSubmitted",
    "ProtocolError",
    "Publisher",
    "QuotaChanged",
    "QuotaReached",
    "Recency",
    "RequestFacts",
    "RequestModule",
    "ResourceError",
    "RetryBudget",
    "RetryPolicy",
    "Serde",
    "ServerInfo",
    "Shard",
    "SlotTable",
    "SpaceFields",
    "SparseLookupRequest",
    "Storage",
    "StoreCompleted",
    "StoreItem",
    "StorePlan",
    "StorePolicy",
    "StoreSubmitted",
    "StoredObject",
    "StoredSpace",
    "StoresDropped",
    "Subscriber",
    "Subscriptions",
    "SystemClock",
    "TokenIds",
    "Usage",
    "Worker",
    "WorkerLeft",
    "WorkerRegistered",
    "Workers",
    "check",
    "hookimpl",
    "inspect",
    "media_path",
    "pack_kv_rank",
    "recompute_cost",
    "seal",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if (home := _HOME_OF.get(name)) is None:
        raise AttributeError(f"module 'lmcache_core' has no attribute '{name}'")
    value = getattr(import_module(f"lmcache_core.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
