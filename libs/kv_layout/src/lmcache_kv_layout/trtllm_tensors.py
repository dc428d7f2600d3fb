"""Which format the pool of TensorRT-LLM has."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from lmcache_kv_layout.errors import LayoutError
from lmcache_kv_layout.formats import EngineKVFormat
from lmcache_kv_layout.hints import LayoutHints
from lmcache_kv_layout.layer_pages import read_layers
from lmcache_kv_layout.registration import Layer, Pages, named, plain, spread
from lmcache_kv_layout.tensor_view import TensorView


def read_trtllm(layers: Sequence[Layer], wanted: Collection[int], hints: LayoutHints, device: str) -> Pages:
    if len(layers) != 1:
        raise LayoutError(f"{len(layers)} tensors; trtllm registers one pool of all layers")
    pool = plain(0, layers[0])
    if len(pool.shape) == 4:
        pool = _unfolded(pool, hints)
    return spread(named(0, read_layers, pool, EngineKVFormat.NB_NL_TWO_NH_BS_HS), wanted)


def _unfolded(pool: TensorView, hints: LayoutHints) -> TensorView:
    """`[NB, NL, 2, NH * BS * HS]` with its last dimension in three."""
    heads, slots, width = hints.num_kv_heads, hints.tokens_per_block, hints.head_dim
    if heads is None or slots is None or width is None:
        raise LayoutError(f"{pool}: the hints num_kv_heads, tokens_per_block and head_dim must part its last dimension")
    if pool.shape[3] != heads * slots * width or pool.stride[3] != 1:
        raise LayoutError(
            f"{pool}: its last dimension is not {heads} heads x {slots} tokens x {width} elements in a row"
        )
    shape = (*pool.shape[:3], heads, slots, width)
    stride = (*pool.stride[:3], slots * width, width, 1)
    return TensorView(pool.dtype, shape, stride, pool.storage_offset, pool.storage)
