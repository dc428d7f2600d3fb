"""Layers that an engine gives blocks together."""

from __future__ import annotations

from dataclasses import dataclass

from lmcache_kv_layout.errors import LayoutError


@dataclass(frozen=True, slots=True)
class EngineGroup:
    """One kernel group as the engine lists it: layers of one block table and one geometry.

    `layer_indices` count registered tensors; empty is all of them.  `tokens_per_block` 0: as many as a page has slots; more:
    the page is compressed, or shared by several ranks.  `sw_size_tokens`: sliding window, -1 for none.
    """

    engine_group_id: int
    layer_indices: tuple[int, ...] = ()
    tokens_per_block: int = 0
    sw_size_tokens: int = -1
    extra_object_group_tag: int = 0
    recurrent_state: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "layer_indices", tuple(self.layer_indices))
        if not 0 <= self.tokens_per_block < 2**31:
            raise LayoutError(f"tokens_per_block of engine group {self.engine_group_id} is {self.tokens_per_block}")
        if any(b <= a for a, b in zip(self.layer_indices, self.layer_indices[1:], strict=False)):
            raise LayoutError(
                f"layer_indices of engine group {self.engine_group_id} do not ascend: {self.layer_indices[:8]}"
            )
