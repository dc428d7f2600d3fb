"""For plugin authors' tests: the laws of each kind of offer, and what stands in for a server.

    from lmcache_core.testing import L2AdapterSuite

    class TestAcme(L2AdapterSuite):
        offer = "acme"

Install `lmcache-core[testing]`.  Names are imported when they are first used, so that a suite costs nothing to those who
do not run it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # the names: __init__.pyi
