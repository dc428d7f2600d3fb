"""A layer's tensor, read as pages."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lmcache_kv_layout.errors import LayoutError
from lmcache_kv_layout.formats import DIMENSIONS, EngineKVFormat
from lmcache_kv_layout.limits import LAYERS_MAX
from lmcache_kv_layout.tensor_view import TensorView


@dataclass(frozen=True, slots=True)
class PageShape:
    """Sizes and byte strides of pages; what layers of one kernel group have in common.  `tokens` is what one page holds."""

    blocks: int
    slots: int
    tokens: int
    heads: int
    head_bytes: int
    block_stride: int
    slot_stride: int
    head_stride: int


@dataclass(frozen=True, slots=True)
class LayerPages:
    """Pages of one layer: one base where K and V are fused or one, two otherwise."""

    format: EngineKVFormat
    dtype: str
    item_bytes: int
    shape: PageShape
    bases: tuple[tuple[int, int], ...]


def read_layers(view: TensorView, format: EngineKVFormat, slots: int | None = None) -> tuple[LayerPages, ...]:
    """The layers in this tensor: one, or as many as its dimension of layers has.

    `slots` are those of a block, needed where blocks and slots are folded into one dimension. A view that does not fit the
    format, whose rows are not contiguous, or whose elements overlap is a `LayoutError`.
    """
    dims = DIMENSIONS[format]
    if len(dims) != len(view.shape):
        raise LayoutError(f"{view} has {len(view.shape)} dimensions; {format.name} has {len(dims)}")
    _check_apart(view)
    size = dict(zip(dims, view.shape, strict=True))
    step = {dim: stride * view.item_bytes for dim, stride in zip(dims, view.stride, strict=True)}
    if size.get("1", 1) != 1 or size.get("k", 2) != 2 or size.get("t", 2) != 2:
        raise LayoutError(f"{view} is not of the format {format.name}")
    if size.get("l", 1) > LAYERS_MAX:
        raise LayoutError(f"{view} has {size['l']} layers; the limit is {LAYERS_MAX}")
    opaque = format is EngineKVFormat.NL_X_NB_BSV_BSS
    shape = _opaque_pages(view) if opaque else _page_shape(view, size, step, slots)
    start = view.storage_offset * view.item_bytes
    kv_step = [0, step["k"]] if "k" in size else [0]
    return tuple(
        LayerPages(
            format,
            view.dtype,
            view.item_bytes,
            shape,
            tuple((view.storage, start + layer * step.get("l", 0) + offset) for offset in kv_step),
        )
        for layer in range(size.get("l", 1))
    )


def joined_pages(key: LayerPages, value: LayerPages) -> LayerPages:
    """One layer of K and V from two tensors."""
    if (key.dtype, key.shape) != (value.dtype, value.shape):
        raise LayoutError(
            f"the K and V tensors of a layer differ: {key.dtype} {key.shape} and {value.dtype} {value.shape}"
        )
    return replace(key, bases=key.bases + value.bases)


def _page_shape(view: TensorView, size: dict[str, int], step: dict[str, int], slots: int | None) -> PageShape:
    row = size["d"] * size.get("t", 1)
    if (size["d"] > 1 and step["d"] != view.item_bytes) or ("t" in size and step["t"] != size["d"] * view.item_bytes):
        raise LayoutError(f"{view}: the row of a head is not contiguous")
    head_bytes = row * view.item_bytes
    heads = size.get("h", 1)
    head_stride = step["h"] if heads > 1 else head_bytes
    if "p" in size:
        if slots is None or size["p"] % slots:
            raise LayoutError(
                f"{view}: its {size['p']} slots are not whole blocks; the hint tokens_per_block is {slots}"
            )
        blocks, slot_stride = size["p"] // slots, step["p"]
        block_stride = slots * slot_stride
    else:
        blocks, slots, slot_stride, block_stride = size["b"], size["s"], step["s"], step["b"]
    if slots == 1:
        slot_stride = heads * head_bytes
    if blocks == 1:
        block_stride = max(slots * slot_stride, heads * head_stride)
    return PageShape(blocks, slots, slots, heads, head_bytes, block_stride, slot_stride, head_stride)


def _opaque_pages(view: TensorView) -> PageShape:
    """Pages that are copied whole, as one slot: the values of all tokens, and behind them their scales."""
    blocks, tokens, row = view.shape
    page = tokens * row * view.item_bytes
    if (tokens > 1 and view.stride[1] != row) or view.stride[2] != 1:
        raise LayoutError(f"{view}: a block of values and scales is not contiguous")
    stride = view.stride[0] * view.item_bytes if blocks > 1 else page
    return PageShape(blocks, 1, tokens, 1, page, stride, page, page)


def _check_apart(view: TensorView) -> None:
    """Refuse views in which two elements share an address."""
    reach = 0
    for stride, size in sorted(
        (stride, size) for stride, size in zip(view.stride, view.shape, strict=True) if size > 1
    ):
        if stride <= reach:
            raise LayoutError(f"{view}: its elements overlap")
        reach += (size - 1) * stride
