"""The kernel that moves pages of an engine's cache to and from contiguous memory, in the byte order of a stored object.

Imported by the compiler's child alone (`page_images.py`) and by tests: it needs triton.
"""

# mypy: ignore-errors
# ruff: noqa: N803 - the names of compile-time constants are written so in this language

import triton
import triton.language as tl


@triton.jit
def move_pages(
    bases,
    blocks,
    objects,
    object_words,
    first_plane,
    WORD: tl.constexpr,
    GATHER: tl.constexpr,
    BLOCKS: tl.constexpr,
    SLOTS: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_WORDS: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr,
    SLOT_STRIDE: tl.constexpr,
    HEAD_STRIDE: tl.constexpr,
    TILE: tl.constexpr,
):
    """One program moves TILE words of one page: `[plane][BLOCKS][SLOTS][HEADS][HEAD_WORDS]` of each object, strides and
    sizes in words.  `bases` and `blocks` are the addresses of int64 tables: where each plane's block 0 lies, and the block
    ids.  A negative id is the null (padding) block: it is gathered as zeros, and nothing is scattered to it."""
    tile = tl.program_id(0)
    numbered = tl.program_id(1)
    plane = tl.program_id(2)
    page_words: tl.constexpr = SLOTS * HEADS * HEAD_WORDS
    base = tl.load(bases.to(tl.pointer_type(tl.int64)) + (first_plane + plane))
    block = tl.load(blocks.to(tl.pointer_type(tl.int64)) + numbered)
    number = (numbered // BLOCKS).to(tl.int64)
    place = plane.to(tl.int64) * BLOCKS + numbered % BLOCKS

    word = tile * TILE + tl.arange(0, TILE)
    inside = word < page_words
    slot = (word // (HEADS * HEAD_WORDS)).to(tl.int64)
    head = (word // HEAD_WORDS % HEADS).to(tl.int64)
    in_page = block * BLOCK_STRIDE + slot * SLOT_STRIDE + head * HEAD_STRIDE + word % HEAD_WORDS
    page = base.to(tl.pointer_type(WORD)) + in_page
    stored = objects.to(tl.pointer_type(WORD)) + (number * object_words + place * page_words) + word
    there = tl.where(block >= 0, inside, word < 0)
    if GATHER:
        tl.store(stored, tl.load(page, mask=there, other=0), mask=inside)
    else:
        tl.store(page, tl.load(stored, mask=there, other=0), mask=there)
