"""Server-driven requests as they are on the wire."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lmcache_core import EngineKey, Operation
from lmcache_kv_layout import EngineGroup, LayoutHints


class Hints(msgspec.Struct, frozen=True):
    """What a worker says of its tensors that their shapes do not; any of it may be missing."""

    kv_layout: str | None = None
    num_kv_heads: int | None = None
    tokens_per_block: int | None = None
    kv_list_layout: str | None = None
    head_dim: int | None = None

    def read(self) -> LayoutHints:
        """Raises LayoutError for what no engine means."""
        return LayoutHints(self.kv_layout, self.num_kv_heads, self.tokens_per_block, self.kv_list_layout, self.head_dim)


class EngineGroupInfo(msgspec.Struct, frozen=True):
    """One kernel group: layers that share blocks and geometry."""

    engine_group_id: int
    layer_indices: tuple[int, ...] = ()
    tokens_per_block: int = 0
    sw_size_tokens: int = -1
    extra_object_group_tag: int = 0
    recurrent_state: bool = False

    def read(self) -> EngineGroup:
        """Raises LayoutError for what no engine means."""
        return EngineGroup(
            self.engine_group_id,
            self.layer_indices,
            self.tokens_per_block,
            self.sw_size_tokens,
            self.extra_object_group_tag,
            self.recurrent_state,
        )


NOT_MOVED = (b"", False)
"""No event to wait for, and nothing stored or retrieved."""

# A registration has no negative of its own.  Without a result frame the engine runs, uncached, instead of failing to start.
REGISTER = Operation(
    "register_kv_cache",
    1,
    (int, list[msgspec.msgpack.Ext], str, int, str, Hints, list[EngineGroupInfo]),
    None,
)
UNREGISTER = Operation("unregister_kv_cache", 2, (int,), None)
STORE = Operation("store", 6, (EngineKey, int, list[list[int]], bytes), tuple[bytes, bool], NOT_MOVED)
RETRIEVE = Operation("retrieve", 7, (EngineKey, int, list[list[int]], bytes, int), tuple[bytes, bool], NOT_MOVED)

BlockIds = Sequence[Sequence[int]]
"""Outer: kernel groups in their order; inner: the engine's blocks for the tokens of the range."""
