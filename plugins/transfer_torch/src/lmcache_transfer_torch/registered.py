"""What the module knows of a worker: its memory, and which of its blocks make up a chunk."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lmcache_core import ObjectGroup, ProtocolError
from lmcache_kv_layout import (
    NO_BLOCK,
    ChunkBlocks,
    LayoutError,
    ObjectGroupPlan,
    ObjectRegion,
    PagedGroup,
    plan_object_groups,
    whole_chunks,
)
from lmcache_transfer_torch.device import TransferPart, WorkerMemory
from lmcache_transfer_torch.messages import BlockIds

ID_MAX: Final = 2**63 - 1


def plan_groups(groups: Sequence[PagedGroup], chunk_tokens: int, separate: bool) -> tuple[ObjectGroupPlan, ...]:
    """Stored together, a chunk has all blocks of every group, as with engines that copy themselves: both find what the
    other has stored.  Stored apart, a window that is shorter than a chunk and ends at blocks keeps only its blocks."""
    fits = all(not group.window_tokens % group.tokens_per_block for group in groups if group.window_tokens > 0)
    return plan_object_groups(groups, chunk_tokens, separate, trim_windows=separate and fits)


@dataclass(frozen=True, slots=True, eq=False)
class RegisteredWorker:
    """One registration.  `tables` and the plans count kernel groups in the order of the registration."""

    memory: WorkerMemory
    groups: tuple[PagedGroup, ...]
    plans: tuple[ObjectGroupPlan, ...]
    chunk_tokens: int
    null_block: int
    connection: bytes
    """On which it speaks."""

    @property
    def one_row_groups(self) -> Sequence[int]:
        """Kernel groups that have one row for each token and layer."""
        return [number for number, group in enumerate(self.groups) if group.kv_axis == 1 and group.heads == 1]

    @property
    def chunk_bytes(self) -> int:
        """Of all objects of a chunk."""
        return sum(plan.layout.payload_bytes for plan in self.plans)

    @property
    def object_groups(self) -> tuple[ObjectGroup, ...]:
        return tuple(ObjectGroup(plan.layout, plan.window_chunks) for plan in self.plans)

    def tables(self, block_ids: BlockIds, chunks: int) -> list[ChunkBlocks]:
        """The blocks of each kernel group.  Raises ProtocolError for what cannot be this worker's."""
        if len(block_ids) != len(self.groups):
            raise ProtocolError(f"block ids for {len(block_ids)} kernel groups; registered are {len(self.groups)}")
        try:
            return [
                ChunkBlocks.of(group, ids, chunks, self.chunk_tokens, self.null_block)
                for group, ids in zip(self.groups, block_ids, strict=True)
            ]
        except LayoutError as error:
            raise ProtocolError(str(error)) from None

    def skipped(self, tables: Sequence[ChunkBlocks], tokens: int) -> list[ChunkBlocks]:
        """Without the blocks that lie wholly in the first `tokens` tokens of the range."""
        return [
            _without(table, tokens // group.tokens_per_block) for group, table in zip(self.groups, tables, strict=True)
        ]

    def whole_chunks(self, plan: ObjectGroupPlan, tables: Sequence[ChunkBlocks], chunks: int) -> Sequence[int]:
        """Chunks of which everything is there that a hit ending with them needs.  An engine has null blocks for what its
        layers attend to no more, or never wrote; a chunk with such a gap must not be found."""
        if not any(NO_BLOCK in tables[region.group].ids for region in plan.regions):
            return range(chunks)
        return whole_chunks(self.groups, plan, tables, chunks)

    @staticmethod
    def parts(
        plan: ObjectGroupPlan, tables: Sequence[ChunkBlocks], chunks: Sequence[int], addresses: Sequence[int]
    ) -> list[TransferPart]:
        """Copies between these chunks' blocks and their objects, which begin at `addresses`."""
        return [
            TransferPart(
                region.group,
                _chosen(tables[region.group], chunks, region),
                [address + region.offset for address in addresses],
            )
            for region in plan.regions
        ]


def _chosen(table: ChunkBlocks, chunks: Sequence[int], region: ObjectRegion) -> array[int]:
    """The blocks of these chunks, which ascend, that the region keeps."""
    if region.blocks == table.per_chunk and len(chunks) * table.per_chunk == len(table.ids):
        return table.ids  # all of them
    return table.flat(chunks, region)


def _without(table: ChunkBlocks, blocks: int) -> ChunkBlocks:
    if not blocks:
        return table
    ids = array("q", table.ids)
    blocks = min(blocks, len(ids))
    ids[:blocks] = array("q", [NO_BLOCK]) * blocks
    return ChunkBlocks(ids, table.per_chunk)
