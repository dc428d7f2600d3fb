"""Pages built and read with plain indexing, by what the names of the formats say: slow, and independent of what is tested."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from lmcache_kv_layout import EngineKVFormat, LayoutHints, PagedGroup, TensorView, detect_groups

Bytes = NDArray[np.uint8]
ITEM = {"uint8": 1, "bfloat16": 2, "float16": 2, "float32": 4}

SEPARATE = (0, 1, 2, 4, 6, 7, 8, 9, 15, 16)
"""Formats with K and V apart."""
FUSED = (10, 11, 12, 13, 18)
"""Formats with both in a row, or with one of them."""
SINGLE_HEAD = (3, 5, 17)
"""Formats without heads."""
HEAD_MAJOR = {6, 7, 10, 12, 15}
FOR_SGLANG = {4: "k_v", 5: None, 9: "k_v", 18: "unified"}
SWAPPABLE = {1, 2, 6, 7, 12, 13}
"""Formats that engines also show with heads and slots exchanged, over the same memory."""


@dataclass(frozen=True)
class Sizes:
    """Dimensions of a cache; `row` is the elements of one head of one slot."""

    layers: int
    blocks: int
    slots: int
    heads: int
    row: int
    dtype: str

    @property
    def row_bytes(self) -> int:
        return self.row * ITEM[self.dtype]


@dataclass(frozen=True)
class Presentation:
    """How the same pages may be shown: gaps behind blocks, layers inside blocks, an offset, exchanged dimensions."""

    gap: int = 0
    interleaved: bool = False
    offset: int = 0
    swapped: bool = False


def random_content(sizes: Sizes, kv_axis: int, seed: int) -> Bytes:
    """Rows by [kv][layer][block][slot][head][byte]."""
    shape = (kv_axis, sizes.layers, sizes.blocks, sizes.slots, sizes.heads, sizes.row_bytes)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def expected_objects(content: Bytes, blocks: list[int], per_object: int) -> list[Bytes]:
    """Chunk objects by their definition: [kv][layer][slot][head][byte]."""
    found = []
    for start in range(0, len(blocks), per_object):
        ids = blocks[start : start + per_object]
        kv_axis, layers = content.shape[:2]
        rows = [content[kv, layer, block] for kv, layer, block in product(range(kv_axis), range(layers), ids)]
        found.append(np.concatenate([row.reshape(-1) for row in rows]))
    return found


def cache_lines(nbytes: int) -> Bytes:
    """Memory that begins with a cache line, as that of engines does."""
    memory = np.full(nbytes + 64, 0xA5, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + nbytes]


class ReferencePages:
    """A cache of one format in memory of its own, and what an engine would register of it."""

    def __init__(self, format: int, sizes: Sizes, shown: Presentation = Presentation()) -> None:
        self.format = EngineKVFormat(format)
        self.sizes = sizes
        self.shown = shown
        *self.levels, inner = self.format.name.split("_X_")
        self.dims = inner.split("_")
        self.separate = format in SEPARATE
        self.storages: list[Bytes] = []
        self._tensors: dict[tuple[int, ...], Bytes] = {}
        self._views: dict[tuple[int, ...], TensorView] = {}
        self._allocate()

    @property
    def kv_axis(self) -> int:
        return 2 if self.separate else 1

    def fill(self, content: Bytes) -> None:
        for cell, row in self._rows(content):
            self._store(cell, row)

    def content(self) -> Bytes:
        sizes = self.sizes
        found = np.zeros(
            (self.kv_axis, sizes.layers, sizes.blocks, sizes.slots, sizes.heads, sizes.row_bytes), np.uint8
        )
        for cell, row in self._rows(found):
            row[...] = self._load(cell)
        return found

    def outside(self) -> bytes:
        """Everything in the storages that is not a row: gaps and offsets."""
        kept = self.content()
        self.fill(np.zeros_like(kept))
        rest = b"".join(storage.tobytes() for storage in self.storages)
        self.fill(kept)
        return rest

    def registered(self) -> list[TensorView | tuple[TensorView, ...]]:
        if self.levels == ["TWO", "NL"]:
            return [self._views[key] for key in sorted(self._views)]
        if len(self.levels) == 2:
            planes = sorted({key[1] for key in self._views})
            return [tuple(self._views[layer, plane] for plane in planes) for layer in range(self.sizes.layers)]
        return [self._views[key] for key in sorted(self._views)]

    def hints(self) -> LayoutHints:
        number = int(self.format)
        slots = self.sizes.slots if number in (4, 5) else None
        if number in FOR_SGLANG:
            return LayoutHints(tokens_per_block=slots, kv_list_layout=FOR_SGLANG[number])
        return LayoutHints(kv_layout="HND" if number in HEAD_MAJOR else "NHD")

    def engine(self) -> str:
        return "sglang" if int(self.format) in FOR_SGLANG else "trtllm" if self.format == 8 else "vllm"

    def group(self) -> PagedGroup:
        (found,) = detect_groups(self.registered(), self.hints(), engine=self.engine())
        return found

    def bases(self, group: PagedGroup) -> list[int]:
        return [self.storages[storage].ctypes.data + offset for storage, offset in group.bases]

    def _size(self, dim: str) -> int:
        sizes = self.sizes
        row = sizes.row // 2 if "TWO" in self.dims and not self.separate else sizes.row
        known = {"NB": sizes.blocks, "NL": sizes.layers, "TWO": 2, "BS": sizes.slots, "NH": sizes.heads, "HS": row}
        return {**known, "CS": sizes.row, "NBBS": sizes.blocks * sizes.slots, "ONE": 1}[dim]

    def _allocate(self) -> None:
        level_sizes = {"NL": self.sizes.layers, "TWO": 2, "NP": 1}
        keys = list(product(*(range(level_sizes[level]) for level in self.levels)))
        shape = [self._size(dim) for dim in self.dims]
        strides = [int(np.prod(shape[place + 1 :])) for place in range(len(shape))]
        page = strides[0]
        together = len(keys) if self.shown.interleaved and self.dims[0] == "NB" else 1
        if self.dims[0] == "NB":
            strides[0] = together * page + self.shown.gap
        span = self.shown.offset + strides[0] * shape[0]
        item = ITEM[self.sizes.dtype]
        for place, key in enumerate(keys):
            if together == 1 or place == 0:
                self.storages.append(cache_lines(span * item))
            offset = self.shown.offset + (place * page if together > 1 else 0)
            memory = self.storages[-1][offset * item :]
            byte_strides = (*(stride * item for stride in strides), 1)
            self._tensors[key] = as_strided(memory, (*shape, item), byte_strides)
            seen, steps = list(shape), list(strides)
            if self.shown.swapped and int(self.format) in SWAPPABLE:
                a, b = self.dims.index("BS"), self.dims.index("NH")
                seen[a], seen[b], steps[a], steps[b] = seen[b], seen[a], steps[b], steps[a]
            view = TensorView(self.sizes.dtype, tuple(seen), tuple(steps), offset, len(self.storages) - 1)
            self._views[key] = view

    def _rows(self, content: Bytes) -> Any:
        for kv, layer, block, slot, head in np.ndindex(*content.shape[:-1]):
            cell = {
                "TWO": kv,
                "NL": layer,
                "NB": block,
                "BS": slot,
                "NH": head,
                "NBBS": block * self.sizes.slots + slot,
            }
            yield {**cell, "ONE": 0, "NP": 0}, content[kv, layer, block, slot, head]

    def _target(self, cell: dict[str, int]) -> Bytes:
        tensor = self._tensors[tuple(cell[level] for level in self.levels)]
        fused = "TWO" in self.dims and not self.separate
        index = [slice(None) if dim in ("HS", "CS") or (fused and dim == "TWO") else cell[dim] for dim in self.dims]
        return tensor[tuple(index)]

    def _store(self, cell: dict[str, int], row: Bytes) -> None:
        target = self._target(cell)
        target[...] = row.reshape(target.shape)

    def _load(self, cell: dict[str, int]) -> Bytes:
        return self._target(cell).reshape(-1)
