"""What core itself offers."""

from lmcache_core import Capability, Offer, StorageFacts, hookimpl

_HERE, _SERVER = "lmcache_core.builtin", "lmcache_core.server"
_IN_MEMORY = StorageFacts(capacity=("max_size_gb",), in_memory=True)
_MEMORY = Capability.DELETE | Capability.USAGE | Capability.LIST | Capability.ANY_LENGTH


@hookimpl
def lmcache_l2_adapters() -> list[Offer]:
    opener, settings = f"{_HERE}.memory_l2:MemoryAdapter", f"{_HERE}.memory_l2:MemorySettings"
    return [Offer("memory", "Bounded memory of the server", opener, settings, _MEMORY, storage=_IN_MEMORY)]


@hookimpl
def lmcache_eviction_policies() -> list[Offer]:
    return [Offer("LRU", "Least recently used first", f"{_HERE}.lru:open_lru")]


@hookimpl
def lmcache_store_policies() -> list[Offer]:
    return [Offer("default", "Everything to every healthy backend", f"{_HERE}.policies:open_store_everywhere")]


@hookimpl
def lmcache_prefetch_policies() -> list[Offer]:
    return [Offer("default", "From the first backend that has it", f"{_HERE}.policies:open_load_from_first")]


@hookimpl
def lmcache_subscribers() -> list[Offer]:
    return [Offer("log", "Log lines about events", f"{_HERE}.log_subscriber:open_log_subscriber", default=True)]


@hookimpl
def lmcache_request_modules() -> list[Offer]:
    lookup = Offer("lookup", "Lookups and sessions", f"{_SERVER}.lookup_module:open_lookup", default=True)
    manage = Offer(
        "management", "Ping, clear, chunk size", f"{_SERVER}.management_module:open_management", default=True
    )
    return [
        lookup,
        manage,
        Offer("engine_driven", "Engines copy", f"{_SERVER}.engine_driven_module:open_engine_driven"),
    ]
