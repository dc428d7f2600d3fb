"""K and V by token, in pages and objects of any format and order of elements: plain indexing, and rotation in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from libs.kv_layout.tests.reference_pages import ITEM, SEPARATE, Presentation, ReferencePages, Sizes
from lmcache_kv_layout import KVPlaces, PagedGroup, Rotary

Bits = NDArray[Any]
"""`[K or V][layer][block][slot][head][element]`, as unsigned integers."""

TILE = 2
ORDERS = ("strides", "rows", "transposed", "tiles")
"""`strides`: as on devices, where nothing is measured; `transposed` and `tiles`: as vLLM's kernels for CPUs."""


def place(order: str, kind: int, slot: int, element: int, slots: int, size: int, fused: bool) -> int:
    """Of K (0) or V (1), in a head's part of a block."""
    if order in ("strides", "rows"):
        return slot * 2 * size + kind * size + element if fused else slot * size + element
    start = kind * slots * size if fused else 0
    if order == "transposed":
        return start + (element * slots + slot if kind == 0 else slot * size + element)
    outer, inner, reach = (slot, element, size) if kind == 0 else (element, slot, slots)
    return start + outer // TILE * TILE * reach + inner // TILE * TILE * TILE + outer % TILE * TILE + inner % TILE


@dataclass(frozen=True)
class Cache:
    """A paged cache whose elements are kept in one of `ORDERS`."""

    pages: ReferencePages
    order: str
    size: int

    @classmethod
    def of(cls, format: int, order: str, shape: Sizes, shown: Presentation | None = None) -> Cache:
        """`shape.row` is the head size."""
        row = shape.row if format in SEPARATE else 2 * shape.row
        return cls(ReferencePages(format, replace(shape, row=row), shown or Presentation()), order, shape.row)

    @property
    def item(self) -> np.dtype[Any]:
        return np.dtype(f"u{ITEM[self.pages.sizes.dtype]}")

    def group(self) -> PagedGroup:
        group = self.pages.group()
        if self.order == "strides":
            return replace(group, block_slots=0)
        sizes = self.pages.sizes
        count = 2 * sizes.slots * sizes.heads * self.size
        shape = (group.kv_axis, sizes.slots, sizes.heads, count // group.kv_axis // sizes.slots // sizes.heads)
        numbers = np.arange(count).reshape(shape)
        kv = numbers if group.kv_axis == 2 else np.stack(np.split(numbers[0], 2, axis=-1))
        seen = self._cells(kv[:, None, None].astype(np.uint32))
        return replace(group, places=KVPlaces.measured(group, seen.reshape(-1), self.size))

    def encode(self, kv: Bits) -> NDArray[np.uint8]:
        """Rows as `ReferencePages` has them."""
        cells = self._cells(kv)
        return cells.view(np.uint8).reshape(*cells.shape[:-1], -1)

    def decode(self, content: NDArray[np.uint8]) -> Bits:
        cells = np.ascontiguousarray(content).view(self.item)
        kv = np.zeros((2, *cells.shape[1:-1], self.size), self.item)
        for kind, plane, slot, element, cell, within in self._moves(cells.shape[0]):
            kv[kind, :, :, slot, :, element] = cells[plane, :, :, cell, :, within]
        return kv

    def _cells(self, kv: Bits) -> Bits:
        planes = self.pages.kv_axis
        cells = np.zeros((planes, *kv.shape[1:-1], self.size * 2 // planes), kv.dtype)
        for kind, plane, slot, element, cell, within in self._moves(planes):
            cells[plane, :, :, cell, :, within] = kv[kind, :, :, slot, :, element]
        return cells

    def _moves(self, planes: int) -> Any:
        slots, row = self.pages.sizes.slots, self.size * 2 // planes
        for kind, slot, element in np.ndindex(2, slots, self.size):
            where = place(self.order, kind, slot, element, slots, self.size, planes == 1)
            yield kind, kind * (planes - 1), slot, element, where // row, where % row


def table_of(base: float, rotary_dim: int, positions: int, magnitude: float = 1.0) -> NDArray[np.float32]:
    angles = np.outer(np.arange(positions), base ** (-np.arange(0, rotary_dim, 2) / rotary_dim))
    return (magnitude * np.concatenate([np.cos(angles), np.sin(angles)], axis=1)).astype(np.float32)


def turned_exactly(keys: NDArray[np.float64], base: float, rotary: Rotary, delta: int) -> NDArray[np.float64]:
    """K `[..., element]` turned by `delta` positions, pair by pair."""
    found = keys.copy()
    half = rotary.rotary_dim // 2
    for pair in range(half):
        angle = delta * base ** (-2 * pair / rotary.rotary_dim)
        i, j = (pair, pair + half) if rotary.style == "neox" else (2 * pair, 2 * pair + 1)
        found[..., i] = keys[..., i] * np.cos(angle) - keys[..., j] * np.sin(angle)
        found[..., j] = keys[..., j] * np.cos(angle) + keys[..., i] * np.sin(angle)
    return found


def _bfloat16(bits: Bits) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


NUMBERS: dict[str, Callable[[Bits], NDArray[np.floating[Any]]]] = {
    "float32": lambda bits: bits.view(np.float32),
    "float16": lambda bits: bits.view(np.float16),
    "bfloat16": _bfloat16,
}
ROUNDING = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Half of the distance to the next number, relative to the number, at most."""


def random_bits(shape: tuple[int, ...], dtype: str, seed: int) -> Bits:
    """Numbers of the type, of sizes from 2^-12 to 2^6."""
    rng = np.random.default_rng(seed)
    values = (rng.normal(size=shape) * 2.0 ** rng.integers(-12, 5, shape)).astype(np.float32)
    if dtype == "float32":
        return values.view(np.uint32)
    return (
        values.astype(np.float16).view(np.uint16)
        if dtype == "float16"
        else (values.view(np.uint32) >> 16).astype(np.uint16)
    )
