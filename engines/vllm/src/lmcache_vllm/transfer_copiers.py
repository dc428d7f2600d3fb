"""Which copier can reach a KV cache."""

from __future__ import annotations

from lmcache_kv_layout import LayoutError
from lmcache_vllm.kv_caches import KVCaches
from lmcache_vllm.transfer_cuda import DeviceCopier
from lmcache_vllm.transfer_pages import Copier, HostCopier


def copier_for(caches: KVCaches, threads: int = 1) -> Copier:
    """Raises LayoutError for memory that nothing here can copy."""
    if caches.device == "cpu":
        return HostCopier(threads)
    if caches.device == "cuda":
        return DeviceCopier(caches)
    raise LayoutError(f"pages on the device '{caches.device}' cannot be copied; cpu and cuda can")
