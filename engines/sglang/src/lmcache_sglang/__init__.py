"""The KV-cache server of the node behind SGLang's radix cache: `NodeLinker`, a linker that SGLang loads by its module."""

from typing import Any

__all__ = ["NodeLinker"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name != "NodeLinker":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from lmcache_sglang.linker import NodeLinker  # imports SGLang

    return NodeLinker
