"""Block ids of a range of chunks."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from lmcache_kv_layout.errors import LayoutError
from lmcache_kv_layout.object_groups import ObjectGroupPlan, ObjectRegion
from lmcache_kv_layout.paged_group import PagedGroup

NO_BLOCK = -1
"""Null (padding) block ID: neither read nor written."""


def int64_array(block_ids: Sequence[int]) -> array[int]:
    """A copy.  Bytes are refused: `array` would take them for the memory of fewer ids."""
    try:
        if isinstance(block_ids, bytes | bytearray):
            raise TypeError
        return array("q", block_ids)
    except (TypeError, OverflowError):
        raise LayoutError("a block id is not a 64-bit integer") from None


@dataclass(frozen=True, slots=True)
class ChunkBlocks:
    """The blocks of one kernel group over consecutive chunks: `per_chunk` ids for each, `NO_BLOCK` where there is none."""

    ids: array[int]
    per_chunk: int

    @classmethod
    def of(
        cls, group: PagedGroup, block_ids: Sequence[int], chunks: int, chunk_tokens: int, null_block: int | None = None
    ) -> ChunkBlocks:
        """Read the ids of `chunks` chunks; those behind are ignored.  Too few, or one out of range, is a `LayoutError`."""
        per_chunk = group.blocks_per_chunk(chunk_tokens)
        needed = chunks * per_chunk
        if not 0 <= needed <= len(block_ids):
            raise LayoutError(
                f"{len(block_ids)} block ids for {chunks} chunks of {per_chunk} blocks; {needed} are needed"
            )
        ids = int64_array(block_ids[:needed])
        if ids and not (min(ids) >= 0 and max(ids) < group.blocks):
            raise LayoutError(
                f"block ids from {min(ids)} to {max(ids)}; the group has the blocks 0 to {group.blocks - 1}"
            )
        if null_block is not None and null_block in ids:
            ids = array("q", (NO_BLOCK if block == null_block else block for block in ids))
        return cls(ids, per_chunk)

    def ends_whole(self, chunk: int, blocks: int) -> bool:
        """Whether the last `blocks` blocks of this chunk all exist."""
        end = (chunk + 1) * self.per_chunk
        return NO_BLOCK not in self.ids[end - blocks : end]

    def flat(self, chunks: Sequence[int], region: ObjectRegion | None = None) -> array[int]:
        """Ids of these chunks one behind the other, as a copier takes them; with a region, those that it keeps."""
        found = array("q")
        for chunk in chunks:
            found.extend(self._chunk(chunk, region))
        return found

    def _chunk(self, chunk: int, region: ObjectRegion | None) -> array[int]:
        start = chunk * self.per_chunk
        if region is None:
            return self.ids[start : start + self.per_chunk]
        first = start + region.first_block
        return self.ids[first : first + region.blocks]


def whole_chunks(
    groups: Sequence[PagedGroup], plan: ObjectGroupPlan, tables: Sequence[ChunkBlocks], chunks: int
) -> list[int]:
    """Chunks that have every block which a load may need; only they may be stored.

    `groups` and `tables` are those of all kernel groups.  All blocks of a chunk count, of a region that keeps those of the last
    window its own, and of recurrent state those at the end that hold it. A gap would be stored as zeros, and loaded as such
    into the blocks of an engine that has them.
    """
    needed = [(tables[region.group], _needed_blocks(groups[region.group], region)) for region in plan.regions]
    return [chunk for chunk in range(chunks) if all(table.ends_whole(chunk, blocks) for table, blocks in needed)]


def _needed_blocks(group: PagedGroup, region: ObjectRegion) -> int:
    if not group.recurrent or group.window_tokens < 0:
        return region.blocks
    return min(region.blocks, -(-group.window_tokens // group.tokens_per_block))
