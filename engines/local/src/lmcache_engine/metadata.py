"""What an engine says of its KV cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any


@dataclass(frozen=True, slots=True)
class LMCacheMetadata:
    """`kv_shape`: layers, 2 (1 where a token has one vector, as with MLA), tokens of a chunk, KV heads, head size.

    Raises ValueError for numbers that cannot be."""

    model_name: str
    world_size: int
    local_world_size: int
    worker_id: int
    local_worker_id: int
    kv_dtype: Any
    kv_shape: tuple[int, int, int, int, int]
    use_mla: bool = False
    role: str | None = None
    served_model_name: str | None = None
    chunk_size: int = 256
    kv_layer_groups_manager: Any = None
    engine_id: str | None = None
    kv_connector_extra_config: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "kv_shape", tuple(self.kv_shape))
        if not self.model_name:
            raise ValueError("model_name is empty: chunks of different models would be mixed")
        if not 0 <= self.worker_id < self.world_size <= 255:
            raise ValueError(
                f"worker_id {self.worker_id} of world_size {self.world_size}: 0 to below it, which is at most 255"
            )
        if len(self.kv_shape) != 5 or min(self.kv_shape) < 1 or self.kv_shape[1] > 2:
            raise ValueError(f"kv_shape {self.kv_shape}: expected (layers, 2 or 1, chunk tokens, kv heads, head size)")

    @property
    def dtype_name(self) -> str:
        return str(self.kv_dtype).removeprefix("torch.")

    @property
    def token_elements(self) -> int:
        """Elements of one token over all layers, K and V together."""
        layers, kv, _, heads, size = self.kv_shape
        return prod((layers, kv, heads, size))
