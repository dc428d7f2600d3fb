"""Tensors of an engine become groups that are copied together."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_kv_layout.engine_group import EngineGroup
from lmcache_kv_layout.errors import LayoutError
from lmcache_kv_layout.hints import LayoutHints
from lmcache_kv_layout.layer_pages import LayerPages
from lmcache_kv_layout.limits import GROUPS_MAX, LAYERS_MAX
from lmcache_kv_layout.paged_group import PagedGroup
from lmcache_kv_layout.registration import Layer, Pages
from lmcache_kv_layout.sglang_tensors import read_sglang
from lmcache_kv_layout.trtllm_tensors import read_trtllm
from lmcache_kv_layout.vllm_tensors import read_vllm

READERS = {"vllm": read_vllm, "sglang": read_sglang, "trtllm": read_trtllm}


def detect_groups(
    layers: Sequence[Layer],
    hints: LayoutHints,
    groups: Sequence[EngineGroup] = (),
    device: str = "cpu",
    engine: str = "vllm",
) -> tuple[PagedGroup, ...]:
    """The kernel groups of a registration, one for each of `groups` and in their order; without any, all layers are one.

    `device` is where the tensors are (`cpu`, `cuda`): it decides the order of heads and slots where `hints` do not, and whether
    objects depend on the engine's block size: kernels on CPUs transpose and pack K and V within a block, which no stride
    shows. `engine` is `vllm`, `sglang` or `trtllm`.  Layers in no group are left out, and may be of any kind.  Raises
    `LayoutError`, naming tensor, shape and reason, for whatever is not understood to the last byte.
    """
    if not 1 <= len(layers) <= LAYERS_MAX:
        raise LayoutError(f"{len(layers)} tensors are registered; 1 to {LAYERS_MAX} are understood")
    if len(groups) > GROUPS_MAX:
        raise LayoutError(f"{len(groups)} groups are listed; the limit is {GROUPS_MAX}")
    listed = tuple(groups) or (EngineGroup(0),)
    reader = READERS.get(engine)
    if reader is None:
        raise LayoutError(f"tensors of the engine '{engine}' are not understood; known: {', '.join(READERS)}")
    pages = reader(layers, _wanted(listed, len(layers)), hints, device)
    found = tuple(_paged(place, group, _members(place, group, pages), device) for place, group in enumerate(listed))
    _check_distinct(found)
    return found


def _wanted(groups: Sequence[EngineGroup], tensors: int) -> frozenset[int]:
    """Indices that some group lists; each may be in one only."""
    owner: dict[int, int] = {}
    for place, group in enumerate(groups):
        if not group.layer_indices and len(groups) > 1:
            raise LayoutError(f"group {place} lists no layers; only a single group may mean all")
        for index in group.layer_indices or range(tensors):
            if not 0 <= index < LAYERS_MAX:
                raise LayoutError(f"group {place} lists layer {index}; layers count from 0 to below {LAYERS_MAX}")
            if owner.setdefault(index, place) != place:
                raise LayoutError(f"layer {index} is in group {owner[index]} and in group {place}")
    return frozenset(owner)


def _members(place: int, group: EngineGroup, pages: Pages) -> list[tuple[int, LayerPages]]:
    """Layers of this group with the index of the entry that they are in, in the order in which they were registered."""
    missing = sorted(set(group.layer_indices) - set(pages))
    if missing:
        raise LayoutError(f"group {place} lists layer {missing[0]}, which was not registered")
    members = [(index, layer) for index in group.layer_indices or sorted(pages) for layer in pages[index]]
    if len(members) > LAYERS_MAX:
        raise LayoutError(f"group {place} has {len(members)} layers; the limit is {LAYERS_MAX}")
    _, first = members[0]
    for index, layer in members:
        if _geometry(layer) != _geometry(first):
            raise LayoutError(
                f"group {place} mixes layers: tensor {index} is {_described(layer)}, its first is {_described(first)}; "
                "layers that differ must be listed as groups of their own"
            )
    return members


def _geometry(layer: LayerPages) -> tuple[object, ...]:
    return (layer.format, layer.dtype, len(layer.bases), layer.shape)


def _described(layer: LayerPages) -> str:
    return f"{layer.format.name} {layer.dtype} {layer.shape}"


def _check_distinct(found: Sequence[PagedGroup]) -> None:
    """Engines list layers of one block table and one geometry as one group; two would not be matched to their blocks."""
    seen: dict[tuple[object, ...], int] = {}
    for place, group in enumerate(found):
        rows = (group.kv_axis, group.heads, group.head_bytes, group.slots_per_block)
        key = (group.engine_group_id, group.format, group.dtype, rows)
        if seen.setdefault(key, place) != place:
            raise LayoutError(
                f"groups {seen[key]} and {place} are of one engine group and one geometry; they must be one"
            )


def _paged(place: int, group: EngineGroup, members: list[tuple[int, LayerPages]], device: str) -> PagedGroup:
    _, first = members[0]
    shape = first.shape
    tokens = group.tokens_per_block or shape.tokens
    if tokens % shape.tokens:
        raise LayoutError(f"group {place}: {tokens} tokens_per_block, but a page holds {shape.tokens}: not a multiple")
    return PagedGroup(
        format=first.format,
        layers=len(members),
        kv_axis=len(first.bases),
        heads=shape.heads,
        head_bytes=shape.head_bytes,
        item_bytes=first.item_bytes,
        dtype=first.dtype,
        blocks=shape.blocks,
        slots_per_block=shape.slots,
        tokens_per_block=tokens,
        block_stride=shape.block_stride,
        slot_stride=shape.slot_stride,
        head_stride=shape.head_stride,
        bases=tuple(layer.bases[kv] for kv in range(len(first.bases)) for _, layer in members),
        window_tokens=group.sw_size_tokens if group.sw_size_tokens > 0 else -1,
        engine_group_id=group.engine_group_id,
        object_group_tag=group.extra_object_group_tag,
        recurrent=group.recurrent_state,
        block_slots=shape.slots if device == "cpu" else 0,
    )
