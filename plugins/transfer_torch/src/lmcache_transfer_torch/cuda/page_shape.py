"""The constants that a page kernel is compiled for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lmcache_kv_layout import PagedGroup

TILE: Final = 1024
"""Words that one program moves."""
THREADS: Final = 128
WORD_BYTES: Final = (8, 4, 2, 1)
_INDEX_MAX: Final = 2**31 - TILE


@dataclass(frozen=True, slots=True)
class PageShape:
    """Sizes and strides in words of `word_bytes`; blocks are those of one object."""

    word_bytes: int
    blocks: int
    slots: int
    heads: int
    head_words: int
    block_stride: int
    slot_stride: int
    head_stride: int

    @property
    def page_words(self) -> int:
        return self.slots * self.heads * self.head_words

    @property
    def plane_bytes(self) -> int:
        """What one object has of one plane (K or V of a layer)."""
        return self.blocks * self.page_words * self.word_bytes

    @property
    def tiles(self) -> int:
        return -(-self.page_words // TILE)


def page_shape(group: PagedGroup, blocks: int, bases: tuple[int, ...]) -> PageShape:
    """In the widest words in which every row of a head can be moved, for planes whose block 0 lies at `bases`.
    Raises ValueError for a page that is too large to be numbered."""
    strides = (group.block_stride, group.slot_stride, group.head_stride)
    numbers = (group.head_bytes, *strides, *bases)
    word = next(size for size in WORD_BYTES if all(number % size == 0 for number in numbers))
    shape = PageShape(
        word,
        blocks,
        group.slots_per_block,
        group.heads,
        group.head_bytes // word,
        *(stride // word for stride in strides),
    )
    if shape.page_words > _INDEX_MAX:
        raise ValueError(f"a page of {shape.page_words * word} bytes is larger than the kernels can number")
    return shape
