"""Pages of a KV cache as a blend needs them: rows of tokens, and the rotation that their K was written with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from lmcache_kv_layout import ChunkRows, KVPlaces, LayoutError, PagedGroup, Rotary
from lmcache_vllm.kv_caches import KVCaches, PageGroup


class _Region(NamedTuple):
    group: PageGroup
    rows: ChunkRows
    offset: int
    """Of this group's bytes in a chunk."""


class _Plane(NamedTuple):
    """K or V of one layer."""

    cells: torch.Tensor
    """`[block][head][slot][element of a row]`; the layer's own memory."""
    rows: torch.Tensor
    columns: torch.Tensor
    """`[slot][element]`: where it is in the last two dimensions."""

    @classmethod
    def of(cls, cells: torch.Tensor, slots: Sequence[int], elements: Sequence[int]) -> _Plane:
        """Element e of slot s is at `slots[s] + elements[e]` in a head's part of a block."""
        flat = (torch.tensor(slots)[:, None] + torch.tensor(elements)).to(cells.device)
        return cls(cells, flat // cells.shape[3], flat % cells.shape[3])


class BlendPages:
    """The KV cache of a worker whose layers share one block table."""

    def __init__(self, caches: KVCaches, layers: Mapping[str, Any], rotaries: Mapping[str, Rotary | None]) -> None:
        """`layers`: vLLM's attention layers by name; `rotaries`: of each layer what turns its K, None where nothing does.
        Raises LayoutError for pages of which single rows cannot be written."""
        if caches.device != "cpu":
            raise LayoutError(
                f"pages on the device '{caches.device}' are not moved token by token; those of the CPU are"
            )
        if len({group.table for group in caches.groups}) != 1:
            raise LayoutError(f"the layers are in {len(caches.groups)} KV cache groups; one is blended")
        self._caches = caches
        self._head_sizes = [_head_size(group, layers) for group in caches.groups]
        self._rotaries = rotaries
        self._regions: dict[int, list[_Region]] = {}
        self.block_tokens: int = caches.groups[0].paged.tokens_per_block
        self.positions = min((rotary.positions for rotary in rotaries.values() if rotary is not None), default=0)
        """K can be turned by less than that."""
        self.regions(self.block_tokens)  # raises here what no chunk size can help
        self.item_bytes: int = caches.groups[0].paged.item_bytes
        self._keys: dict[str, _Plane] = {}
        self._values: dict[str, _Plane] = {}
        for group, head_size in zip(caches.groups, self._head_sizes, strict=True):
            places = group.paged.places or KVPlaces.by_strides(group.paged, head_size)
            planes = _planes(group, caches)
            for place, name in enumerate(group.layer_names):
                self._keys[name] = _Plane.of(planes[place], places.key.slots, places.key.elements)
                value_plane = planes[-group.paged.layers :][place]
                self._values[name] = _Plane.of(value_plane, places.value.slots, places.value.elements)

    @property
    def layer_names(self) -> tuple[str, ...]:
        """In the order of the model."""
        return tuple(name for name in self._caches.tensors if name in self._keys)

    def regions(self, chunk_tokens: int) -> list[_Region]:
        if chunk_tokens not in self._regions:
            found, offset = [], 0
            for group, head_size in zip(self._caches.groups, self._head_sizes, strict=True):
                turned_by = [self._rotaries[name] for name in group.layer_names]
                found.append(_Region(group, ChunkRows(group.paged, turned_by, head_size, chunk_tokens), offset))
                offset += group.paged.object_layout(chunk_tokens).payload_bytes
            self._regions[chunk_tokens] = found
        return self._regions[chunk_tokens]

    def write(
        self, chunk: int, chunk_tokens: int, tokens: range, block_ids: Sequence[int], target: int, delta: int
    ) -> int:
        """Rows `tokens` of the chunk at this address become those of the positions from `target` on, their K turned by `delta`;
        the bytes written. Any thread. Raises LayoutError before anything is written, OSError for memory that has vanished."""
        return sum(
            region.rows.read(region.group.bases, block_ids, chunk + region.offset, tokens, target, delta)
            for region in self.regions(chunk_tokens)
        )

    def gather(
        self, chunk: int, chunk_tokens: int, tokens: range, block_ids: Sequence[int], source: int, delta: int
    ) -> int:
        """The reverse: rows `tokens` of the chunk become what the positions from `source` on have. Other rows stay as they are.
        Threads and errors are those of `write`."""
        return sum(
            region.rows.write(region.group.bases, block_ids, chunk + region.offset, tokens, source, delta)
            for region in self.regions(chunk_tokens)
        )

    def keys(self, layer_name: str, block_ids: Sequence[int], positions: torch.Tensor) -> torch.Tensor:
        """K of these positions as the pages have it: float32 `[token][head][element]`, where the pages are."""
        return self._read(self._keys[layer_name], block_ids, positions)

    def values(self, layer_name: str, block_ids: Sequence[int], positions: torch.Tensor) -> torch.Tensor:
        """V, in the same way."""
        return self._read(self._values[layer_name], block_ids, positions)

    def _read(self, plane: _Plane, block_ids: Sequence[int], positions: torch.Tensor) -> torch.Tensor:
        cells, rows, columns = plane
        blocks = torch.tensor(block_ids)[positions // self.block_tokens].to(cells.device)
        slots = (positions % self.block_tokens).to(cells.device)
        heads = torch.arange(cells.shape[1], device=cells.device)
        return cells[blocks[:, None, None], heads[:, None], rows[slots, None], columns[slots, None]].float()


def attention_paid(queries: torch.Tensor, positions: torch.Tensor, keys: torch.Tensor, scale: float) -> torch.Tensor:
    """How much these tokens attend to each, added up over tokens and heads: float32 `[token of keys]`. `queries` and `keys`
    are `[token][head][element]`, heads of K with as many of queries each; `positions` are those of the queries among keys."""
    tokens, _, size = queries.shape
    grouped = queries.float().reshape(tokens, keys.shape[1], -1, size)
    hidden = torch.arange(len(keys), device=keys.device) > positions[:, None].to(keys.device)
    paid = torch.zeros(len(keys), device=keys.device)
    for head in range(
        keys.shape[1]
    ):  # one at a time: the scores of all would be as large as the KV cache of the prompt
        scores = torch.einsum("qgd,kd->gqk", grouped[:, head], keys[:, head]) * scale
        paid += scores.masked_fill_(hidden, -torch.inf).softmax(dim=-1).sum((0, 1))
    return paid


def _head_size(group: PageGroup, layers: Mapping[str, Any]) -> int:
    sizes = {int(layers[name].head_size) for name in group.layer_names}
    if len(sizes) != 1 or len(group.layer_names) != group.paged.layers:
        raise LayoutError(f"layers with heads of {sorted(sizes)} elements are in one group")
    return sizes.pop()


def _planes(group: PageGroup, caches: KVCaches) -> list[torch.Tensor]:
    """Of each of the group's bases a tensor in whose storage it lies."""
    found = []
    for place in range(len(group.bases)):
        kv, layer = divmod(place, group.paged.layers)
        tensor = caches.tensors[group.layer_names[layer]]
        plane = tensor[kv] if isinstance(tensor, tuple | list) else tensor
        offset = group.bases[place] - plane.untyped_storage().data_ptr()
        found.append(plane.as_strided(*_geometry(group.paged), storage_offset=offset // group.paged.item_bytes))
    return found


def _geometry(paged: PagedGroup) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and strides of `[block][head][slot][element of a row]`."""
    strides = (paged.block_stride, paged.head_stride, paged.slot_stride, paged.item_bytes)
    sizes = (paged.blocks, paged.heads, paged.slots_per_block, paged.head_bytes // paged.item_bytes)
    return sizes, tuple(stride // paged.item_bytes for stride in strides)
