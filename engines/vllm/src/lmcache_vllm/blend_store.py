"""From the pages of the model into leased slots of L1, documents that begin and end anywhere in a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lmcache_kv_layout import NO_BLOCK
from lmcache_vllm.metadata import SegmentPlace
from lmcache_vllm.transfer_pages import ChunkPages

if TYPE_CHECKING:  # it needs torch
    from lmcache_vllm.blend_pages import BlendPages


class SegmentGather:
    """Fills chunks of one segment, in place of `ChunkPages.gather`."""

    def __init__(self, place: SegmentPlace, rows: BlendPages, pages: ChunkPages) -> None:
        self._place, self._rows, self._pages = place, rows, pages

    def __call__(self, tables: Sequence[Sequence[int]], chunks: Sequence[int], addresses: Sequence[int]) -> int:
        """`tables` has the blocks that the segment lies in. Behind a segment's end its last chunk has zeros. Raises as
        `ChunkPages.gather`, for blocks that are too few, too."""
        (blocks,), size = tables, self._pages.chunk_tokens
        skipped = self._place.start % self._rows.block_tokens
        moved = 0
        for chunk, address in zip(chunks, addresses, strict=True):
            count = min(size, self._place.tokens - chunk * size)
            if count < size:
                self._clear(address)
            moved += self._rows.gather(address, size, range(count), blocks, skipped + chunk * size, -self._place.start)
        return moved

    def _clear(self, address: int) -> None:
        absent = (NO_BLOCK,) * (self._pages.chunk_tokens // self._rows.block_tokens)
        self._pages.gather([absent], [0], [address])
