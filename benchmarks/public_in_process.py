"""A real engine with the public package's in-process connector, driven as `demo/engine.py` is.

That connector has no page connector for host memory: it finds "No supported cpu connector" and runs without its cache.  Here
one of torch operations is in its place; engine, hashing and storage are its own.  Runs in the engine's environment.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from demo.engine import CONNECTORS, Connector, engine_options, parse_arguments, run


class HostPages:
    """Pages `[block, head, slot, 2 * width]` of each layer.  A chunk has its tokens layer by layer."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        """`shape`: layers, 2, tokens of a chunk, heads, width."""
        self.layers, _, _, self.heads, self.width = shape
        self.kvcaches: list[torch.Tensor] = []

    def initialize_kvcaches_ptr(self, **kwargs: Any) -> None:
        self.kvcaches = kwargs.get("kvcaches") or self.kvcaches

    def get_shape(self, num_tokens: int) -> torch.Size:
        return torch.Size([2, self.layers, num_tokens, self.heads * self.width])

    def from_gpu(self, memory_obj: Any, start: int, end: int, **kwargs: Any) -> None:
        for layer, page, blocks in self._rows(memory_obj, start, end, kwargs):
            torch.index_select(page, 0, blocks, out=layer)

    def to_gpu(self, memory_obj: Any, start: int, end: int, **kwargs: Any) -> None:
        for layer, page, blocks in self._rows(memory_obj, start, end, kwargs):
            page.index_copy_(0, blocks, layer)

    def batched_from_gpu(self, memory_objs: Any, starts: Any, ends: Any, **kwargs: Any) -> None:
        for chunk, start, end in zip(memory_objs, starts, ends, strict=True):
            self.from_gpu(chunk, start, end, **kwargs)

    def batched_to_gpu(self, memory_objs: Any, starts: Any, ends: Any, **kwargs: Any) -> None:
        for chunk, start, end in zip(memory_objs, starts, ends, strict=True):
            self.to_gpu(chunk, start, end, **kwargs)

    def _rows(self, chunk: Any, start: int, end: int, kwargs: Any) -> Any:
        """Of each layer the blocks in the chunk and in the pages, whole blocks at a time: the cheapest that torch has."""
        self.initialize_kvcaches_ptr(**kwargs)
        block_tokens = self.kvcaches[0].shape[2]
        blocks = kwargs["slot_mapping"][start:end:block_tokens] // block_tokens
        rows = chunk.tensor.view(self.layers, len(blocks), self.heads, block_tokens, 2 * self.width)
        for layer, page in zip(rows, self.kvcaches, strict=True):
            yield layer, page, blocks


def create(config: Any, metadata: Any, engine: Any, layout_hints: Any = None) -> HostPages:
    return HostPages(metadata.kv_shape)


def put_in_place() -> None:
    """When a connector is opened: the public package brings numba, and vLLM cannot replace its kernels after that."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    real = KVConnectorFactory.create_connector

    def create_connector(*given: Any, **named: Any) -> Any:
        from lmcache.v1 import gpu_connector

        gpu_connector.CreateGPUConnector = create
        return real(*given, **named)

    KVConnectorFactory.create_connector = create_connector


if __name__ == "__main__":
    put_in_place()
    CONNECTORS["public"] = Connector("LMCacheConnectorV1", settings={})
    run(engine_options(parse_arguments()))
