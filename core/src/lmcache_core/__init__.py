"""The public API of lmcache-core: everything that a plugin author imports.

    from lmcache_core import Offer, hookimpl

    @hookimpl
    def lmcache_l2_adapters():
        return [Offer("acme", "Objects in an ACME store", settings="acme.config:AcmeSettings", open="acme.adapter:open")]

Names are imported when they are first used, so that `import lmcache_core` costs nothing and loads no library.
"""

from lmcache_client.lazy_names import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)  # the names: __init__.pyi
__version__ = "0.1.0"
