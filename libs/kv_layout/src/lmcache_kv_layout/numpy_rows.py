"""Rows between a chunk and pages with numpy, where nothing is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from lmcache_kv_layout.kv_places import Places
from lmcache_kv_layout.numpy_pages import memory_view
from lmcache_kv_layout.row_job import RowJob, RowMoves, Turn

Rows = NDArray[Any]
"""`[token][head][element]`."""


def _read(job: RowJob, turns: Sequence[Turn | None]) -> None:
    for layer, turn in zip(job.layers, turns, strict=True):
        key_plane, value_plane = _planes(job, layer)
        area = _area(job, key_plane)
        keys = _picked(job, area, job.places.key)
        _put(job, _pages(job, key_plane), job.places.key, _turned(job, keys, turn))
        area = area if job.fused else _area(job, value_plane)
        _put(job, _pages(job, value_plane), job.places.value, _picked(job, area, job.places.value))


def _write(job: RowJob, turns: Sequence[Turn | None]) -> None:
    for layer, turn in zip(job.layers, turns, strict=True):
        key_plane, value_plane = _planes(job, layer)
        keys = _taken(job, _pages(job, key_plane), job.places.key)
        _put(job, _chunk(job, key_plane), job.places.key, _turned(job, keys, turn))
        values = _taken(job, _pages(job, value_plane), job.places.value)
        _put(job, _chunk(job, value_plane), job.places.value, values)


WITH_NUMPY: Final = RowMoves(_read, _write)


def _planes(job: RowJob, layer: int) -> tuple[int, int]:
    """Of K and of V."""
    return layer, layer if job.fused else job.group.layers + layer


def _turned(job: RowJob, keys: Rows, turn: Turn | None) -> Rows:
    return keys if turn is None else turned(keys, turn, job.group.dtype)


def turned(keys: Rows, turn: Turn, dtype: str) -> Rows:
    """K in the same type, its pairs turned in float32 and rounded once."""
    load, store = CONVERSIONS[dtype]
    half, whole = len(turn.cos), 2 * len(turn.cos)
    first, second = (slice(0, whole, 2), slice(1, whole, 2)) if turn.neighbours else (slice(half), slice(half, whole))
    found = keys.copy()
    with np.errstate(all="ignore"):
        a, b = load(keys[..., first]), load(keys[..., second])
        found[..., first] = store(a * turn.cos - b * turn.sin)
        found[..., second] = store(b * turn.cos + a * turn.sin)
    return found


def _from_bfloat16(bits: Rows) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _to_bfloat16(values: NDArray[np.float32]) -> Rows:
    """To the nearest, ties to even; NaN stays NaN."""
    bits = values.view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(values), (bits >> 16) | 0x40, rounded).astype(np.uint16)


CONVERSIONS: Final[dict[str, tuple[Callable[[Rows], NDArray[np.float32]], Callable[[NDArray[np.float32]], Rows]]]] = {
    "float32": (lambda rows: rows.view(np.float32), lambda values: values.view(np.uint32)),
    "float16": (
        lambda rows: rows.view(np.float16).astype(np.float32),
        lambda values: values.astype(np.float16).view(np.uint16),
    ),
    "bfloat16": (_from_bfloat16, _to_bfloat16),
}
"""From the bits of a type to float32, and back."""


def _area(job: RowJob, plane: int) -> NDArray[Any]:
    """A copy of the blocks that the rows are in: `[block][head][slot x element of a row]`."""
    group = job.group
    slots, item = group.slots_per_block, group.item_bytes
    first, end = job.first // slots, -(-(job.first + job.count) // slots)
    row = group.head_bytes // item
    start = job.region + (plane * job.chunk_slots + first * slots) * group.token_bytes
    strides = (slots * group.token_bytes, group.token_bytes, group.head_bytes, item)
    cells = memory_view(start, (end - first, slots, group.heads, row), strides, item)
    return np.array(cells.transpose(0, 2, 1, 3), order="C").reshape(end - first, group.heads, slots * row)


def _picked(job: RowJob, area: NDArray[Any], places: Places) -> Rows:
    """The rows of the job."""
    index = np.add.outer(places.slots, places.elements)
    steps = _even(index)
    if steps is None:
        found = area[:, :, index]
    else:
        start, *by = (step * area.itemsize for step in steps)
        shape, strides = (*area.shape[:2], *index.shape), (*area.strides[:2], *by)
        found = as_strided(area[:, :, start // area.itemsize :], shape, strides, writeable=False)
    skip = job.first % job.group.slots_per_block
    by_token = found.transpose(0, 2, 1, 3).reshape(-1, job.group.heads, len(places.elements))
    return by_token[skip : skip + job.count]


class _Blocks(NamedTuple):
    """The blocks of one plane, in the pages or in the chunk, that rows are in."""

    addresses: Sequence[int]
    first_slot: int
    """Of the first block."""
    slot_stride: int
    head_stride: int


def _pages(job: RowJob, plane: int) -> _Blocks:
    group, base = job.group, job.bases[plane]
    addresses = [base + block * group.block_stride for block in job.blocks]
    return _Blocks(addresses, job.first_slot, group.slot_stride, group.head_stride)


def _chunk(job: RowJob, plane: int) -> _Blocks:
    group, slots = job.group, job.group.slots_per_block
    start = job.region + plane * job.chunk_slots * group.token_bytes
    first, end = job.first // slots, -(-(job.first + job.count) // slots)
    addresses = [start + block * slots * group.token_bytes for block in range(first, end)]
    return _Blocks(addresses, job.first % slots, group.token_bytes, group.head_bytes)


def _put(job: RowJob, blocks: _Blocks, places: Places, rows: Rows) -> None:
    """Write the rows of the job."""
    cells = _Cells(job, blocks, places)
    for address, slots, tokens in _runs(job, blocks):
        cells.write(address, slots, rows[tokens])


def _taken(job: RowJob, blocks: _Blocks, places: Places) -> Rows:
    """The rows of the job, as a copy."""
    cells = _Cells(job, blocks, places)
    found = np.empty((job.count, job.group.heads, len(places.elements)), f"u{job.group.item_bytes}")
    for address, slots, tokens in _runs(job, blocks):
        found[tokens] = cells.read(address, slots)
    return found


class _Cells:
    """Rows of some slots of one block: `[slot][head][element]`."""

    def __init__(self, job: RowJob, blocks: _Blocks, places: Places) -> None:
        self._heads, self._item = job.group.heads, job.group.item_bytes
        self._row = job.group.head_bytes // self._item
        self._blocks = blocks
        self._cell, self._within = np.divmod(np.add.outer(places.slots, places.elements), self._row)
        self._steps = _even(self._cell * blocks.slot_stride + self._within * self._item)

    def read(self, address: int, slots: slice) -> Rows:
        if self._steps is not None:
            return self._evenly(address, slots, *self._steps)
        rows: Rows = self._block(address)[self._cell[slots], :, self._within[slots]].transpose(0, 2, 1)
        return rows

    def write(self, address: int, slots: slice, rows: Rows) -> None:
        if self._steps is not None:
            self._evenly(address, slots, *self._steps)[...] = rows
        else:
            self._block(address)[self._cell[slots], :, self._within[slots]] = rows.transpose(0, 2, 1)

    def _evenly(self, address: int, slots: slice, start: int, by_slot: int, by_element: int) -> Rows:
        shape = (slots.stop - slots.start, self._heads, self._cell.shape[1])
        strides = (by_slot, self._blocks.head_stride, by_element)
        return memory_view(address + start + slots.start * by_slot, shape, strides, self._item)

    def _block(self, address: int) -> Rows:
        shape = (self._cell.shape[0], self._heads, self._row)
        return memory_view(address, shape, (self._blocks.slot_stride, self._blocks.head_stride, self._item), self._item)


def _runs(job: RowJob, blocks: _Blocks) -> Iterator[tuple[int, slice, slice]]:
    """Of each block: its address, its slots, and the rows that belong to them."""
    done = 0
    for place, address in enumerate(blocks.addresses):
        first = blocks.first_slot if place == 0 else 0
        count = min(job.group.slots_per_block - first, job.count - done)
        yield address, slice(first, first + count), slice(done, done + count)
        done += count


def _even(places: NDArray[np.int64]) -> tuple[int, int, int] | None:
    """The first place, and the distances of slots and of elements; None where they vary."""
    start = int(places[0, 0])
    by_slot, by_element = (int(axis[1]) - start if len(axis) > 1 else 0 for axis in (places[:, 0], places[0]))
    slots, elements = (np.arange(count) for count in places.shape)
    even = start + np.add.outer(slots * by_slot, elements * by_element)
    return (start, by_slot, by_element) if np.array_equal(even, places) else None
