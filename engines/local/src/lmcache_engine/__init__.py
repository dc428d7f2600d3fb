"""The KV cache inside of an inference engine's process, by the interface of `LMCacheEngine`.

config = LMCacheEngineConfig.from_defaults(max_local_cpu_size=2.0)
pages = CreateGPUConnector(config, metadata, EngineType.VLLM)
engine = LMCacheEngineBuilder.get_or_create("engine-0", config, metadata, pages, broadcast, broadcast_object)
engine.post_init(kvcaches=kvcaches)
"""

from lmcache_engine.builder import LMCacheEngineBuilder
from lmcache_engine.config import LMCacheEngineConfig
from lmcache_engine.engine import LMCacheEngine
from lmcache_engine.keys import CacheEngineKey, LayerCacheEngineKey
from lmcache_engine.metadata import LMCacheMetadata
from lmcache_engine.pages import CreateGPUConnector, EngineType, PagedConnector
from lmcache_engine.token_database import ChunkedTokenDatabase

__version__ = "0.1.0"

__all__ = [
    "CacheEngineKey",
    "ChunkedTokenDatabase",
    "CreateGPUConnector",
    "EngineType",
    "LMCacheEngine",
    "LMCacheEngineBuilder",
    "LMCacheEngineConfig",
    "LMCacheMetadata",
    "LayerCacheEngineKey",
    "PagedConnector",
]
