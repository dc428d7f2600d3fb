"""Rows of a chunk into pages with numpy, where nothing is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from lmcache_kv_layout.kv_places import Places
from lmcache_kv_layout.numpy_pages import memory_view
from lmcache_kv_layout.row_job import RowJob, Turn

Rows = NDArray[Any]
"""`[token][head][element]`."""


def read_with_numpy(job: RowJob, turns: Sequence[Turn | None]) -> None:
    """`turns` are those of `job.layers`."""
    for layer, turn in zip(job.layers, turns, strict=True):
        key_plane, value_plane = layer, layer if job.fused else job.group.layers + layer
        area = _area(job, key_plane)
        keys = _picked(job, area, job.places.key)
        _write(job, key_plane, job.places.key, keys if turn is None else turned(keys, turn, job.group.dtype))
        area = area if job.fused else _area(job, value_plane)
        _write(job, value_plane, job.places.value, _picked(job, area, job.places.value))


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


def _write(job: RowJob, plane: int, places: Places, rows: Rows) -> None:
    group = job.group
    item = group.item_bytes
    cell, within = np.divmod(np.add.outer(places.slots, places.elements), group.head_bytes // item)
    steps = _even(cell * group.slot_stride + within * item)
    for block, slots, tokens in _runs(job):
        page = job.bases[plane] + block * group.block_stride
        if steps is None:
            shape, strides = (
                (*within.shape[:1], group.heads, group.head_bytes // item),
                (group.slot_stride, group.head_stride),
            )
            cells = memory_view(page, shape, (*strides, item), item)
            cells[cell[slots], :, within[slots]] = rows[tokens].transpose(0, 2, 1)
        else:
            start, by_slot, by_element = steps
            kept = rows[tokens]
            spread = (by_slot, group.head_stride, by_element)
            memory_view(page + start + slots.start * by_slot, kept.shape, spread, item)[...] = kept


def _runs(job: RowJob) -> Iterator[tuple[int, slice, slice]]:
    """Of each block: its id, the slots that are written, and the rows that they get."""
    done = 0
    for place, block in enumerate(job.blocks):
        first = job.target if place == 0 else 0
        count = min(job.group.slots_per_block - first, job.count - done)
        yield block, slice(first, first + count), slice(done, done + count)
        done += count


def _even(places: NDArray[np.int64]) -> tuple[int, int, int] | None:
    """The first place, and the distances of slots and of elements; None where they vary."""
    start = int(places[0, 0])
    by_slot, by_element = (int(axis[1]) - start if len(axis) > 1 else 0 for axis in (places[:, 0], places[0]))
    slots, elements = (np.arange(count) for count in places.shape)
    even = start + np.add.outer(slots * by_slot, elements * by_element)
    return (start, by_slot, by_element) if np.array_equal(even, places) else None
