"""What an engine registers, and what it turns out to be."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import ParamSpec, TypeVar

from lmcache_kv_layout.errors import LayoutError
from lmcache_kv_layout.hints import LayoutHints
from lmcache_kv_layout.layer_pages import LayerPages
from lmcache_kv_layout.tensor_view import TensorView

P = ParamSpec("P")
T = TypeVar("T")

Layer = TensorView | tuple[TensorView, ...]
"""One registered entry: a tensor, or the planes of one layer."""

Pages = dict[int, tuple[LayerPages, ...]]
"""What each entry holds, by its index: a layer, or several."""


def registered(wanted: Collection[int], layers: Sequence[Layer]) -> list[int]:
    """Those of the wanted indices that are there."""
    return [index for index in wanted if index < len(layers)]


def spread(layers: tuple[LayerPages, ...], wanted: Collection[int]) -> Pages:
    """Layers of one tensor: listed one by one, or all of them as the tensor that they are in."""
    return {0: layers} if set(wanted) == {0} else {index: (layer,) for index, layer in enumerate(layers)}


def named(index: int, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Read entry `index`; whatever is wrong with it says so."""
    try:
        return read(*args, **kwargs)
    except LayoutError as error:
        raise LayoutError(f"tensor {index}: {error}") from None


def plain(index: int, layer: Layer) -> TensorView:
    if not isinstance(layer, TensorView):
        raise LayoutError(f"tensor {index} is a tuple of {len(layer)}; this engine registers plain tensors")
    return layer


def needed_slots(view: TensorView, hints: LayoutHints) -> int:
    if hints.tokens_per_block is None:
        raise LayoutError(f"{view}: blocks and slots are one dimension; the hint tokens_per_block must part them")
    return hints.tokens_per_block
