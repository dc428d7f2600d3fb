"""Which format tensors of SGLang have."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from lmcache_kv_layout.errors import LayoutError
from lmcache_kv_layout.formats import EngineKVFormat
from lmcache_kv_layout.hints import LayoutHints
from lmcache_kv_layout.layer_pages import LayerPages, joined_pages, read_layers
from lmcache_kv_layout.registration import Layer, Pages, named, needed_slots, plain, registered
from lmcache_kv_layout.tensor_view import TensorView

F = EngineKVFormat

UNIFIED = {3: F.NL_X_NB_BS_HS, 4: F.NL_X_NB_BS_NH_HS}
LISTS_OF_K_AND_V = {3: F.TWO_X_NL_X_NBBS_NH_HS, 4: F.TWO_X_NL_X_NB_BS_NH_HS}
"""Formats by the number of dimensions."""


def read_sglang(layers: Sequence[Layer], wanted: Collection[int], hints: LayoutHints, device: str) -> Pages:
    views = [plain(index, layer) for index, layer in enumerate(layers)]
    ranks = {len(view.shape) for view in views}
    if len(ranks) > 1:
        raise LayoutError(f"tensors of {sorted(ranks)} dimensions in one registration of sglang")
    if hints.kv_list_layout == "k_v":
        return _read_lists(views, wanted, hints)
    first = views[0]
    if hints.kv_list_layout == "unified":
        format = UNIFIED.get(len(first.shape))
        slots = None
    elif len(first.shape) == 3 and first.shape[1] == 1:
        format = F.NL_X_NBBS_ONE_HS
        slots = needed_slots(first, hints)
    else:
        raise LayoutError(f"{first}: the hint kv_list_layout must say how the list is made: 'k_v' or 'unified'")
    if format is None:
        raise LayoutError(f"{first}: with the hint kv_list_layout 'unified', three or four dimensions are understood")
    return {index: named(index, _read_one, views[index], format, slots, hints) for index in registered(wanted, views)}


def _read_one(
    view: TensorView, format: EngineKVFormat, slots: int | None, hints: LayoutHints
) -> tuple[LayerPages, ...]:
    layers = read_layers(view, format, slots)
    found = layers[0].shape.slots
    if hints.tokens_per_block not in (None, found):
        raise LayoutError(f"{view} has pages of {found} tokens; the hint tokens_per_block is {hints.tokens_per_block}")
    return layers


def _read_lists(views: list[TensorView], wanted: Collection[int], hints: LayoutHints) -> Pages:
    rank = len(views[0].shape)
    format = LISTS_OF_K_AND_V.get(rank)
    if len(views) % 2 or format is None:
        raise LayoutError(
            f"{len(views)} tensors of {rank} dimensions: the hint kv_list_layout 'k_v' is for as many K as V tensors, "
            "of three or four dimensions"
        )
    slots = needed_slots(views[0], hints) if rank == 3 else None
    half = len(views) // 2
    found: Pages = {}
    for index in registered(wanted, views[:half]):
        key, value = (named(place, read_layers, views[place], format, slots)[0] for place in (index, index + half))
        found[index] = (named(index, joined_pages, key, value),)
    return found
