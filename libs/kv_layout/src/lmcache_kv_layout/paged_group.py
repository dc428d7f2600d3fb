"""Where the bytes of a group of layers lie."""

from __future__ import annotations

from dataclasses import dataclass

from lmcache_client import ObjectLayout
from lmcache_kv_layout.errors import LayoutError
from lmcache_kv_layout.formats import EngineKVFormat
from lmcache_kv_layout.kv_places import KVPlaces
from lmcache_kv_layout.limits import SPAN_MAX


@dataclass(frozen=True, slots=True)
class PagedGroup:
    """One kernel group: layers whose pages have the same geometry.

    The row of (kv, layer, block, slot, head) is the `head_bytes` bytes at `bases[kv * layers + layer] + block * block_stride +
    slot * slot_stride + head * head_stride`; a base is a storage and a byte offset in it, all strides are bytes. `heads` and
    `head_bytes` are those of the copy: where K and V are fused, a row holds both.
    `tokens_per_block` tokens of a prompt fill a block, `slots_per_block` rows of it are there.  `window_tokens` -1: no window.
    `block_slots` and `order` are those of its objects: 0, or `slots_per_block` where the engine may have other elements in the
    row of a slot than those of that slot. Where they are then is in `places`, if it is known.
    """

    format: EngineKVFormat
    layers: int
    kv_axis: int
    heads: int
    head_bytes: int
    item_bytes: int
    dtype: str
    blocks: int
    slots_per_block: int
    tokens_per_block: int
    block_stride: int
    slot_stride: int
    head_stride: int
    bases: tuple[tuple[int, int], ...]
    window_tokens: int = -1
    engine_group_id: int = 0
    object_group_tag: int = 0
    recurrent: bool = False
    block_slots: int = 0
    order: str = ""
    places: KVPlaces | None = None

    @property
    def token_bytes(self) -> int:
        """Bytes of one slot in one layer of K or V."""
        return self.heads * self.head_bytes

    @property
    def token_major(self) -> bool:
        """Whether a block's slots are one run of bytes per layer, as they are in objects."""
        return self.head_stride == self.head_bytes and self.slot_stride == self.token_bytes

    def blocks_per_chunk(self, chunk_tokens: int) -> int:
        if chunk_tokens < 1 or chunk_tokens % self.tokens_per_block:
            raise LayoutError(
                f"a chunk of {chunk_tokens} tokens is not a whole number of blocks of {self.tokens_per_block} tokens; "
                "choose a chunk size that is a multiple of the engine's block size"
            )
        return chunk_tokens // self.tokens_per_block

    def slots_per_chunk(self, chunk_tokens: int) -> int:
        return self.blocks_per_chunk(chunk_tokens) * self.slots_per_block

    def skip_slots(self, tokens: int) -> int:
        """Slots of the first `tokens` tokens, whole blocks only."""
        return tokens // self.tokens_per_block * self.slots_per_block

    def object_layout(self, chunk_tokens: int) -> ObjectLayout:
        """The region of this group in a chunk object."""
        return self.region_layout(self.blocks_per_chunk(chunk_tokens))

    def region_layout(self, blocks: int) -> ObjectLayout:
        """The region of this number of blocks."""
        slots, hidden = blocks * self.slots_per_block, self.token_bytes // self.item_bytes
        try:
            layout = ObjectLayout(
                self.kv_axis, self.layers, slots, hidden, self.dtype, block_slots=self.block_slots, order=self.order
            )
        except ValueError as error:
            raise LayoutError(str(error)) from None
        if layout.payload_bytes > SPAN_MAX:
            raise LayoutError(
                f"{blocks} blocks of {self.layers} layers are {layout.payload_bytes} bytes; the limit is {SPAN_MAX}"
            )
        return layout
