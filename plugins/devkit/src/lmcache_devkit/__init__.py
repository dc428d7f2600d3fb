"""For plugin authors' tests: the conformance suites of each kind of offer, and test doubles of a server.

    from lmcache_devkit import L2AdapterSuite

    class TestAcme(L2AdapterSuite):
        offer = "acme"

Names are imported when they are first used, so that a suite costs nothing to those who
do not run it.
"""

from lmcache_client.lazy_names import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)  # the names: __init__.pyi
__version__ = "0.1.0"
