"""Which format tensors of vLLM have.

vLLM shows tensors with their dimensions exchanged. Read in the order in which they lie in memory, and with the order of heads
and slots known, number and sizes of the dimensions tell the formats apart.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from lmcache_kv_layout.errors import LayoutError
from lmcache_kv_layout.formats import EngineKVFormat
from lmcache_kv_layout.hints import LayoutHints
from lmcache_kv_layout.layer_pages import LayerPages, joined_pages, read_layers
from lmcache_kv_layout.limits import PLANES_MAX
from lmcache_kv_layout.registration import Layer, Pages, named, registered, spread
from lmcache_kv_layout.tensor_view import TensorView

F = EngineKVFormat

INDEXER_ROW = 132
"""Bytes of a row of a sparse-attention index: 128 values and the four bytes of their scale."""


def read_vllm(layers: Sequence[Layer], wanted: Collection[int], hints: LayoutHints, device: str) -> Pages:
    head_major = hints.head_major(default=device == "cpu")
    if len(layers) == 1 and isinstance(layers[0], TensorView) and len(layers[0].shape) == 6:
        whole = named(0, _outermost_first, layers[0])
        format = _format_of(whole, head_major)
        if format is not None and whole.shape[2] == 2:
            raise LayoutError(
                f"{whole}: one tensor of two blocks of one slot cannot be distinguished from a layer; give it more blocks"
            )
        if format is None:
            across = F.NB_NL_TWO_NH_BS_HS if hints.head_major(default=False) else F.NB_NL_TWO_BS_NH_HS
            return spread(named(0, read_layers, whole, across), wanted)
    return {index: named(index, _read_layer, layers[index], head_major) for index in registered(wanted, layers)}


def _read_layer(layer: Layer, head_major: bool) -> tuple[LayerPages, ...]:
    if not isinstance(layer, TensorView):
        return _read_planes(layer)
    view = _outermost_first(layer)
    format = _format_of(view, head_major)
    if format is None:
        raise LayoutError(f"{view} is not a known layout of pages")
    if format is F.NL_X_NB_BSV_BSS and len(view.shape) == 4:
        view = _without_dim(view, 1 if head_major else 2)
    return read_layers(view, format)


def _format_of(view: TensorView, head_major: bool) -> EngineKVFormat | None:
    shape = view.shape
    match len(shape):
        case 3:
            return F.NL_X_NB_BSV_BSS if _is_indexer(view) else F.NL_X_NB_BS_HS
        case 4:
            if shape[1 if head_major else 2] == 1 and _is_indexer(view):
                return F.NL_X_NB_BSV_BSS
            return F.NL_X_NB_NH_BS_CS if head_major else F.NL_X_NB_BS_NH_CS
        case 5:
            return _format_of_five(view, head_major)
        case 6 if shape[0] == 2 and shape[3] == 1:
            return F.NL_X_TWO_NB_NH_ONE_BS_HS
    return None


def _format_of_five(view: TensorView, head_major: bool) -> EngineKVFormat | None:
    shape = view.shape
    if shape[0] == 2 and shape[1] == 2:
        raise LayoutError(
            f"{view}: with two blocks, K and V cannot be distinguished from blocks; give the cache more than two"
        )
    if shape[0] == 2:
        return F.NL_X_TWO_NB_NH_BS_HS if head_major else F.NL_X_TWO_NB_BS_NH_HS
    if shape[1] == 2:
        return F.NL_X_NB_TWO_NH_BS_HS if head_major else F.NL_X_NB_TWO_BS_NH_HS
    if shape[3] == 2:
        return F.NL_X_NB_NH_BS_TWO_HS if head_major else F.NL_X_NB_BS_NH_TWO_HS
    return None


def _read_planes(planes: tuple[TensorView, ...]) -> tuple[LayerPages, ...]:
    """A layer of several tensors: K and V, or the planes of a latent, which become layers of their own."""
    if not 1 <= len(planes) <= PLANES_MAX or any(len(plane.shape) != 4 for plane in planes):
        raise LayoutError(
            f"a layer of {len(planes)} tensors: 1 to {PLANES_MAX}, all of four dimensions, are understood"
        )
    if len(planes) == 2 and planes[0].shape == planes[1].shape:
        key, value = (read_layers(plane, F.NL_X_TWO_X_NB_BS_NH_HS)[0] for plane in planes)
        return (joined_pages(key, value),)
    if len({(plane.shape, plane.stride, plane.dtype) for plane in planes}) > 1:
        raise LayoutError(
            f"a layer of {len(planes)} planes that differ in width, type or strides ({'; '.join(map(str, planes))}) has no "
            "single row for a token; register each kind of plane as layers of a group of its own"
        )
    return tuple(read_layers(plane, F.NL_X_NP_X_NB_BS_ONE_HS)[0] for plane in planes)


def _is_indexer(view: TensorView) -> bool:
    return view.dtype == "uint8" and view.shape[-1] == INDEXER_ROW


def _outermost_first(view: TensorView) -> TensorView:
    """The same elements, dimensions in the order in which they lie; of those that tie, one of size 1 comes last.

    Engines exchange any dimensions but the last, which is a row of elements.  Where another one sorts behind it, as one of size
    1 can with any stride, the others would be taken for what they are not.
    """
    order = sorted(range(len(view.shape)), key=lambda dim: (-view.stride[dim], view.shape[dim] == 1))
    if order[-1] != len(order) - 1:
        raise LayoutError(f"{view}: the last dimension shown is not the innermost one in memory")
    shape, stride = (tuple(values[dim] for dim in order) for values in (view.shape, view.stride))
    return TensorView(view.dtype, shape, stride, view.storage_offset, view.storage)


def _without_dim(view: TensorView, dim: int) -> TensorView:
    shape, stride = (values[:dim] + values[dim + 1 :] for values in (view.shape, view.stride))
    return TensorView(view.dtype, shape, stride, view.storage_offset, view.storage)
