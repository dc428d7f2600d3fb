from .builder import LMCacheEngineBuilder as LMCacheEngineBuilder
from .config import LMCacheEngineConfig as LMCacheEngineConfig
from .engine import LMCacheEngine as LMCacheEngine
from .keys import CacheEngineKey as CacheEngineKey, LayerCacheEngineKey as LayerCacheEngineKey
from .metadata import LMCacheMetadata as LMCacheMetadata
from .pages import CreateGPUConnector as CreateGPUConnector, EngineType as EngineType, PagedConnector as PagedConnector
from .sglang import (
    LMCacheConnector as LMCacheConnector,
    LMCacheLayerwiseConnector as LMCacheLayerwiseConnector,
    LoadMetadata as LoadMetadata,
    StoreMetadata as StoreMetadata,
    init_lmcache_engine as init_lmcache_engine,
)
from .token_database import (
    ChunkedTokenDatabase as ChunkedTokenDatabase,
    SegmentTokenDatabase as SegmentTokenDatabase,
)

__version__: str
