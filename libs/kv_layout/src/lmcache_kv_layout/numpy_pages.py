"""Copies of pages with numpy, where nothing is compiled."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmcache_kv_layout.chunk_blocks import NO_BLOCK
from lmcache_kv_layout.page_job import Direction, PageJob


class _Run(NamedTuple):
    """Neighbouring blocks of an object: which of its slots, and which blocks of the engine; `None` where it has none.

    `skip` leading slots of the first block are left out; then it is a run by itself.
    """

    inside: slice
    outside: slice | None
    skip: int


def copy_with_numpy(job: PageJob) -> int:
    """Runs of neighbouring blocks are one strided copy for each layer; numpy releases the GIL while it copies."""
    if job.direction is Direction.GATHER and job.has_gaps:
        _zero_absent(job)
    group = job.group
    strides = (group.block_stride, group.slot_stride, group.head_stride)
    word = gcd(8, group.head_bytes, *strides, *job.bases, *job.objects)
    shape = (group.blocks, group.slots_per_block, group.heads, group.head_bytes // word)
    gathers = job.direction is Direction.GATHER
    copied = 0
    for place in range(len(job.objects)):
        runs = [run for run in _runs(job, place) if run.outside is not None]
        for row in _rows(job):
            region = _region(job, place, row, word)
            pages = memory_view(job.bases[row], shape, (*strides, word), word)
            for inside, outside, skip in runs:
                kept, page = region[inside], pages[outside]
                if skip:
                    kept, page = kept[:, skip:], page[:, skip:]
                if gathers:
                    np.copyto(kept, page)
                else:
                    np.copyto(page, kept)
                copied += kept.nbytes
    return copied


def _zero_absent(job: PageJob) -> None:
    """Fill the slots of absent blocks with zeros, in the objects."""
    for place in range(len(job.objects)):
        absent = [run.inside for run in _runs(job, place) if run.outside is None]
        for row in _rows(job):
            region = _region(job, place, row, 1)
            for inside in absent:
                region[inside] = 0


def _rows(job: PageJob) -> Iterator[int]:
    for kv in range(job.group.kv_axis):
        yield from (kv * job.group.layers + layer for layer in job.layers)


def _runs(job: PageJob, place: int) -> Iterator[_Run]:
    """Blocks of one object: those that lie side by side, or are absent side by side, together."""
    ids = job.blocks[place * job.blocks_per_object : (place + 1) * job.blocks_per_object]
    first, skip = divmod(job.skip_slots, job.group.slots_per_block) if place == 0 else (0, 0)
    while first < len(ids):
        block, count = ids[first], 1
        step = 0 if block == NO_BLOCK else 1
        while skip == 0 and first + count < len(ids) and ids[first + count] == block + step * count:
            count += 1
        yield _Run(slice(first, first + count), slice(block, block + count) if step else None, skip)
        first, skip = first + count, 0


def _region(job: PageJob, place: int, row: int, word: int) -> NDArray[Any]:
    """What an object has of one layer of K or V: `[block][slot][head][word]`."""
    group = job.group
    strides = (group.slots_per_block * group.token_bytes, group.token_bytes, group.head_bytes)
    shape = (job.blocks_per_object, group.slots_per_block, group.heads, group.head_bytes // word)
    return memory_view(job.objects[place] + row * job.blocks_per_object * strides[0], shape, (*strides, word), word)


class _Memory:
    """What numpy needs to know of memory that is not its own."""

    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], word: int) -> None:
        self.__array_interface__ = {
            "data": (address, False),
            "shape": shape,
            "strides": strides,
            "typestr": f"<u{word}" if word > 1 else "|u1",
            "version": 3,
        }


def memory_view(address: int, shape: tuple[int, ...], strides: tuple[int, ...], word: int) -> NDArray[Any]:
    """Unsigned integers of `word` bytes at an address, which the caller keeps mapped; strides are bytes."""
    return np.asarray(_Memory(address, shape, strides, word))
