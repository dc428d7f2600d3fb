"""The public API of lmcache-l2-adapter: what the author of an L2 adapter starts from.

    from lmcache_core import Outcome
    from lmcache_l2_adapter import BlockingL2Adapter

    class Acme(BlockingL2Adapter):
        def store(self, key, buffer):
            self.client.write(key.object_id, buffer.view)
            return Outcome.DONE
        ...

Names are imported when they are first used, so that an adapter on threads does not import asyncio.
"""

from lmcache_client.lazy_names import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)  # the names: __init__.pyi
__version__ = "0.1.0"
