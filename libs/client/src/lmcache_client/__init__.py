"""The public API of lmcache-client: what an engine needs to talk to a KV-cache server on its node.

    from lmcache_client import GET_CHUNK_SIZE, EngineClient

    with EngineClient("tcp://127.0.0.1:5555") as client:
        print(client.call(GET_CHUNK_SIZE))

Names are imported when they are first used, so that `import lmcache_client` loads no library.
"""

from lmcache_client.lazy_names import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)  # the names: __init__.pyi
__version__ = "0.1.0"
