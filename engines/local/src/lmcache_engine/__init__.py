"""The KV cache inside of an inference engine's process, by the interface of `LMCacheEngine`.

config = LMCacheEngineConfig.from_defaults(max_local_cpu_size=2.0)
pages = CreateGPUConnector(config, metadata, EngineType.VLLM)
engine = LMCacheEngineBuilder.get_or_create("engine-0", config, metadata, pages, broadcast, broadcast_object)
engine.post_init(kvcaches=kvcaches)

Names are imported when they are first used: a server looks at this package for a command, and needs no numpy.
"""

from lmcache_client.lazy_names import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)  # the names: __init__.pyi
__version__ = "0.1.0"
