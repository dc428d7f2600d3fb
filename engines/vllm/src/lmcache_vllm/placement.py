"""Which shard of a chunk a worker holds, and how the KV cache of the model is divided into groups."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

from lmcache_kv_identity import approximate_name, with_variant


@dataclass(frozen=True, slots=True)
class Placement:
    """The part of a cache key that follows from the model and its parallelism."""

    model_name: str
    """As it is sent to the server (model_identity.py)."""
    world_size: int
    """Shards of each chunk."""
    worker_id: int
    """The shard of this worker; 0 in the scheduler."""
    readers: int = 1
    """Workers that read each shard."""
    writes: bool = True
    """False for a worker whose shard another one stores."""

    def key_name(self, variant: str, *, approximate: bool) -> str:
        """The model name of keys of requests with this variant."""
        return with_variant(approximate_name(self.model_name) if approximate else self.model_name, variant)

    @classmethod
    def of(cls, model_name: str, tensor_parallel: int, pipeline_parallel: int, rank: int, mla: bool) -> Placement:
        """`rank` counts the workers of one engine, tensor parallel ranks first. With multi-head latent attention
        (`mla`) every tensor parallel rank holds the same, so that one of them stores and all of them read."""
        workers = tensor_parallel * pipeline_parallel
        if not 0 <= rank < workers:
            raise ValueError(f"rank {rank} is not one of {workers} workers")
        if not mla:
            return cls(model_name, workers, rank)
        return cls(model_name, pipeline_parallel, rank // tensor_parallel, tensor_parallel, rank % tensor_parallel == 0)


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """One KV cache group of vLLM: layers that share a block table."""

    layer_names: tuple[str, ...]
    block_tokens: int
    window_tokens: int = -1
    """How far its layers look back; -1: to the first token."""


def block_span(groups: tuple[CacheGroup, ...]) -> int:
    """Tokens after which the blocks of all groups end together; a chunk is a multiple of it."""
    return lcm(*(group.block_tokens for group in groups))
