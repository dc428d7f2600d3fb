"""One move of rows between a chunk and pages, checked."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from lmcache_kv_layout.chunk_blocks import NO_BLOCK
from lmcache_kv_layout.errors import LayoutError
from lmcache_kv_layout.kv_places import KVPlaces
from lmcache_kv_layout.page_job import ADDRESS_END, address_array, base_addresses, block_id_array, layer_range
from lmcache_kv_layout.paged_group import PagedGroup

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class RowJob:
    """Rows `[first, first + count)` of a chunk of `chunk_slots`, and those of `blocks` from slot `first_slot` of the first one
    on."""

    group: PagedGroup
    places: KVPlaces
    chunk_slots: int
    bases: array[int]
    region: int
    first: int
    count: int
    blocks: array[int]
    first_slot: int
    layers: range

    @classmethod
    def checked(
        cls,
        group: PagedGroup,
        places: KVPlaces,
        chunk_slots: int,
        bases: Sequence[int],
        blocks: Sequence[int],
        region: int,
        tokens: range,
        start: int,
        layers: range | None,
    ) -> RowJob:
        """Raise `LayoutError` for whatever does not fit.  `blocks` are a request's from its first token on, the
        rows those from its token `start` on."""
        if tokens.step != 1 or not 0 <= tokens.start <= tokens.stop <= chunk_slots:
            raise LayoutError(f"{tokens} is not a range of the {chunk_slots} tokens of a chunk")
        end = start + len(tokens)
        if not 0 <= start <= end <= len(blocks) * group.slots_per_block:
            raise LayoutError(
                f"tokens {start} to {end} of a request with {len(blocks)} blocks of {group.slots_per_block} tokens"
            )
        first_block, first_slot = divmod(start, group.slots_per_block)
        ids = block_id_array(blocks[first_block : -(-end // group.slots_per_block)], group.blocks)
        if NO_BLOCK in ids:
            raise LayoutError(f"block {first_block + ids.index(NO_BLOCK)} of the request is not there")
        (address,) = address_array("chunk", [region])
        region_bytes = group.kv_axis * group.layers * chunk_slots * group.token_bytes
        if address > ADDRESS_END - region_bytes:
            raise LayoutError("the address of a chunk is beyond what a process has")
        chosen = layer_range(layers, group)
        addresses = base_addresses(group, bases)
        return cls(group, places, chunk_slots, addresses, address, tokens.start, len(tokens), ids, first_slot, chosen)

    @property
    def fused(self) -> bool:
        """Whether K and V are in one plane."""
        return self.group.kv_axis == 1

    @property
    def nbytes(self) -> int:
        """Bytes that are written."""
        elements = len(self.places.key.elements) + len(self.places.value.elements)
        return self.count * len(self.layers) * self.group.heads * elements * self.group.item_bytes


@dataclass(frozen=True, slots=True)
class Turn:
    """How K of one layer is turned: cosine and sine of each pair, and whether pairs are neighbours (`gptj`)."""

    cos: NDArray[np.float32]
    sin: NDArray[np.float32]
    neighbours: bool


Move = Callable[[RowJob, Sequence[Turn | None]], object]
"""Moves the rows; the turns are those of `job.layers`.  May raise `MemoryFault`."""


class RowMoves(NamedTuple):
    """One implementation."""

    read: Move
    """From the chunk into the pages."""
    write: Move
    """From the pages into the chunk."""
