"""A small model's KV cache, and engines over it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from lmcache_engine import (
    ChunkedTokenDatabase,
    CreateGPUConnector,
    EngineType,
    LMCacheEngine,
    LMCacheEngineConfig,
    LMCacheMetadata,
)

LAYERS, HEADS, SIZE, BLOCK, CHUNK = 2, 2, 16, 8, 16
BLOCKS = 256


def metadata(**changes: Any) -> LMCacheMetadata:
    facts: dict[str, Any] = {
        "model_name": "tiny",
        "world_size": 1,
        "local_world_size": 1,
        "worker_id": 0,
        "local_worker_id": 0,
        "kv_dtype": torch.bfloat16,
        "kv_shape": (LAYERS, 2, CHUNK, HEADS, SIZE),
    }
    return LMCacheMetadata(**facts | changes)


def config(**changes: Any) -> LMCacheEngineConfig:
    return LMCacheEngineConfig.from_defaults(**{"chunk_size": CHUNK, "max_local_cpu_size": 0.02} | changes)


def kv_cache() -> list[torch.Tensor]:
    """Of one tensor for each layer: blocks, heads, slots, K and V."""
    return [torch.zeros(BLOCKS, HEADS, BLOCK, 2 * SIZE, dtype=torch.bfloat16) for _ in range(LAYERS)]


def slots(blocks: Sequence[int]) -> torch.Tensor:
    return torch.tensor([block * BLOCK + slot for block in blocks for slot in range(BLOCK)])


@contextmanager
def opened(
    kv: list[torch.Tensor] | None = None, about: LMCacheMetadata | None = None, **changes: Any
) -> Iterator[LMCacheEngine]:
    made, about = config(**changes), about or metadata()
    pages = CreateGPUConnector(made, about, EngineType.VLLM, {"kv_layout": "HND"})
    engine = LMCacheEngine(made, about, ChunkedTokenDatabase(made, about), pages)
    try:
        if kv is not None:
            engine.post_init(kvcaches=kv)
        yield engine
    finally:
        engine.close()


def fill(kv: list[torch.Tensor], blocks: Sequence[int], tokens: Sequence[int]) -> None:
    """What a model would compute: each place has a value of its own, which follows from all tokens up to it."""
    for number, block in enumerate(blocks):
        seed = hash(tuple(tokens[: (number + 1) * BLOCK])) % 2**31
        values = torch.randn(LAYERS, HEADS, BLOCK, 2 * SIZE, generator=torch.Generator().manual_seed(seed))
        for layer in range(LAYERS):
            kv[layer][block] = values[layer].to(torch.bfloat16)
