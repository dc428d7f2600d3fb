"""What core offers as LRU, on the kernels that a server would choose."""

from __future__ import annotations

from lmcache_core.builtin.lru import LeastRecentlyUsed
from lmcache_core.kernels.choice import choose_kernels


def open_compiled_lru(settings: None) -> LeastRecentlyUsed:
    policy = LeastRecentlyUsed()
    policy.use_kernels(choose_kernels("auto"))
    return policy
