"""A connector between vLLM and the KV-cache server of its node."""

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`BlendWorker`, which vLLM asks for by `--worker-cls`: it is vLLM's own worker, imported only there."""
    if name != "BlendWorker":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lmcache_vllm.blend_worker import BlendWorker

    return BlendWorker
