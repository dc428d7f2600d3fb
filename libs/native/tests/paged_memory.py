"""Pages and objects in memory of their own, and what a copy must do, written as slowly as it is read."""

from __future__ import annotations

import ctypes
from array import array
from dataclasses import dataclass, field
from typing import Any

MARGIN = 192


class Memory:
    """Bytes at an address, `offset` bytes behind the beginning of a cache line, with a margin around them."""

    def __init__(self, data: bytes, offset: int = 0) -> None:
        self._held = ctypes.create_string_buffer(len(data) + 2 * MARGIN)
        self._front = -ctypes.addressof(self._held) % 64 + 64 + offset
        self._size = len(data)
        self.address = ctypes.addressof(self._held) + self._front
        self._view = memoryview(self._held).cast("B")
        self._view[self._front : self._front + len(data)] = data

    @property
    def whole(self) -> bytes:
        """With the margins."""
        return bytes(self._view)

    @property
    def data(self) -> memoryview:
        return self._view[self._front : self._front + self._size]


def pattern(size: int, seed: int) -> bytes:
    """Bytes that differ from place to place and from seed to seed."""
    period = bytes((index * 31 + seed * 17 + (index >> 8)) % 251 for index in range(4099))
    return (period * (size // len(period) + 1))[:size]


@dataclass(frozen=True)
class Shape:
    kv_axis: int
    layers: int
    slots_per_block: int
    heads: int
    head_bytes: int
    block_stride: int
    slot_stride: int
    head_stride: int

    @property
    def slot_bytes(self) -> int:
        return self.heads * self.head_bytes

    @property
    def block_extent(self) -> int:
        """From the first byte of a block to behind its last."""
        return (self.slots_per_block - 1) * self.slot_stride + (self.heads - 1) * self.head_stride + self.head_bytes

    @classmethod
    def token_major(cls, kv_axis: int, layers: int, slots: int, heads: int, head_bytes: int, gap: int = 0) -> Shape:
        row = heads * head_bytes
        return cls(kv_axis, layers, slots, heads, head_bytes, slots * row + gap, row, head_bytes)

    @classmethod
    def head_major(cls, kv_axis: int, layers: int, slots: int, heads: int, head_bytes: int, gap: int = 0) -> Shape:
        return cls(
            kv_axis, layers, slots, heads, head_bytes, slots * heads * head_bytes + gap, head_bytes, slots * head_bytes
        )


@dataclass(frozen=True)
class Job:
    shape: Shape
    blocks: list[int]
    objects: int
    layers: tuple[int, int]
    skip_slots: int = 0
    threads: int = 1
    offset: int = 0
    page_count: int = 0
    pages: list[Memory] = field(init=False)
    chunks: list[Memory] = field(init=False)

    def __post_init__(self) -> None:
        shape = self.shape
        pages = max([self.page_count, *(block + 1 for block in self.blocks)])
        page_bytes = max(pages - 1, 0) * shape.block_stride + shape.block_extent
        planes = range(shape.kv_axis * shape.layers)
        object.__setattr__(self, "pages", [Memory(pattern(page_bytes, plane), self.offset) for plane in planes])
        chunk_bytes = self.slots * shape.slot_bytes * len(planes)
        chunks = [Memory(pattern(chunk_bytes, 100 + number), self.offset) for number in range(self.objects)]
        object.__setattr__(self, "chunks", chunks)

    @property
    def slots(self) -> int:
        return len(self.blocks) // self.objects * self.shape.slots_per_block if self.objects else 0

    def arguments(self, direction: int) -> list[Any]:
        shape = self.shape
        return [
            direction,
            array("Q", [page.address for page in self.pages]),
            array("q", self.blocks),
            array("Q", [chunk.address for chunk in self.chunks]),
            *(shape.kv_axis, shape.layers, *self.layers, shape.slots_per_block, shape.heads, shape.head_bytes),
            *(shape.block_stride, shape.slot_stride, shape.head_stride, self.skip_slots, self.threads),
        ]

    def rows(self) -> list[tuple[int, int, int, int]]:
        """Every row that takes part: plane, where it begins in the pages; object, and where it begins there."""
        shape = self.shape
        found = []
        per_object = len(self.blocks) // self.objects if self.objects else 0
        for index, block in enumerate(self.blocks):
            number, first = index // per_object, index % per_object * shape.slots_per_block
            for inner in range(shape.slots_per_block) if block >= 0 else ():
                slot = first + inner
                if number == 0 and slot < self.skip_slots:
                    continue
                for kv in range(shape.kv_axis):
                    for layer in range(*self.layers):
                        plane = kv * shape.layers + layer
                        for head in range(shape.heads):
                            page = block * shape.block_stride + inner * shape.slot_stride + head * shape.head_stride
                            chunk = ((plane * self.slots + slot) * shape.heads + head) * shape.head_bytes
                            found.append((plane, page, number, chunk))
        return found

    def expected(self, direction: int) -> tuple[list[bytes], list[bytes], int]:
        """All memory, margins included, as it must be after the copy, and how many bytes move."""
        pages, chunks = ([bytearray(memory.whole) for memory in row] for row in (self.pages, self.chunks))
        rows, size = self.rows(), self.shape.head_bytes
        fronts = [memory._front for memory in self.pages], [memory._front for memory in self.chunks]
        for plane, page, number, chunk in rows:
            in_page = slice(fronts[0][plane] + page, fronts[0][plane] + page + size)
            in_chunk = slice(fronts[1][number] + chunk, fronts[1][number] + chunk + size)
            if direction == 0:
                chunks[number][in_chunk] = pages[plane][in_page]
            else:
                pages[plane][in_page] = chunks[number][in_chunk]
        return [bytes(page) for page in pages], [bytes(chunk) for chunk in chunks], len(rows) * size

    def found(self) -> tuple[list[bytes], list[bytes]]:
        return [page.whole for page in self.pages], [chunk.whole for chunk in self.chunks]
