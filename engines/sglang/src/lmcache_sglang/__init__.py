"""The KV-cache server of the node behind SGLang, which loads `NodeLinker`, behind its radix cache, or `HiCacheNode`, behind
the host pools of HiCache, by the name of this module."""

from typing import Any

__all__ = ["HiCacheNode", "NodeLinker"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Both import SGLang.
    if name == "NodeLinker":
        from lmcache_sglang.linker import NodeLinker

        return NodeLinker
    if name == "HiCacheNode":
        from lmcache_sglang.hicache import HiCacheNode

        return HiCacheNode
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
