"""The worker of an engine that blends: the platform's own, which hands the model to the connector."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
from vllm.platforms import current_platform

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig


def _worker_of_the_platform() -> Any:
    """What vLLM takes without `--worker-cls`."""
    if current_platform.is_cpu():
        from vllm.v1.worker.cpu_worker import CPUWorker  # changes its process when it is imported

        return CPUWorker
    if current_platform.is_xpu():
        from vllm.v1.worker.xpu_worker import XPUWorker  # as above

        return XPUWorker
    from vllm.v1.worker.gpu_worker import Worker  # as above

    return Worker


class BlendWorker(_worker_of_the_platform()):  # type: ignore[misc]  # known when it is imported
    """Named by `--worker-cls lmcache_vllm.BlendWorker`."""

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        super().initialize_from_config(kv_cache_config)
        if has_kv_transfer_group() and hasattr(connector := get_kv_transfer_group(), "bind_model_runner"):
            connector.bind_model_runner(self.model_runner)
