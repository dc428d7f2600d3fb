"""Copies between the pages of a KV cache and chunks in mapped memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from lmcache_client import LayoutPart
from lmcache_kv_layout import NO_BLOCK, PageCopier
from lmcache_vllm.kv_caches import KVCaches, PageGroup

NULL_BLOCK: Final = 0
"""vLLM's id for a block that is not there."""
BATCH_BYTES: Final = 64 << 20
"""Bytes that are copied between two checks for a cancelled transfer."""


class Copier(Protocol):
    """Moves bytes of one group. `chunks` are the addresses of its region in each chunk, `blocks` as many ids for each of
    them. The bytes are there when it returns. Raises ValueError for what does not fit, before anything is copied, and
    OSError for memory that has vanished."""

    def gather(
        self, group: PageGroup, blocks: Sequence[int], chunks: Sequence[int], layers: range | None = None
    ) -> int: ...

    def scatter(
        self, group: PageGroup, blocks: Sequence[int], chunks: Sequence[int], layers: range | None = None
    ) -> int: ...

    def attach(self, address: int, length: int) -> None:
        """Chunks will lie in this memory."""

    def detach(self, address: int) -> None:
        """They do not any more; it is about to be unmapped."""

    def mark(self) -> Callable[[], None] | None:
        """Called where the model is: a function that waits until the device has done what it was given so far. None: it
        has."""


class HostCopier:
    """For pages in host memory: straight between pages and chunks, with nothing in between."""

    def __init__(self, threads: int = 1) -> None:
        self._pages = PageCopier(threads)

    def gather(
        self, group: PageGroup, blocks: Sequence[int], chunks: Sequence[int], layers: range | None = None
    ) -> int:
        return self._pages.gather(group.paged, group.bases, blocks, chunks, layers=layers)

    def scatter(
        self, group: PageGroup, blocks: Sequence[int], chunks: Sequence[int], layers: range | None = None
    ) -> int:
        return self._pages.scatter(group.paged, group.bases, blocks, chunks, layers=layers)

    def attach(self, address: int, length: int) -> None:
        """Nothing has to be prepared."""

    def detach(self, address: int) -> None:
        """Nor undone."""

    def mark(self) -> Callable[[], None] | None:
        return None  # what the model has written is there when its call returns


@dataclass(frozen=True, slots=True)
class _Region:
    group: PageGroup
    blocks: int
    """In each chunk."""
    offset: int
    """Of this group's bytes in a chunk."""


class ChunkPages:
    """The chunks of one KV cache at one chunk size."""

    def __init__(self, caches: KVCaches, chunk_tokens: int, copier: Copier) -> None:
        """Raises LayoutError where a chunk is not whole blocks."""
        self.chunk_tokens = chunk_tokens
        self.parts: tuple[LayoutPart, ...] = caches.parts(chunk_tokens)
        self.copier = copier
        self._regions: list[_Region] = []
        offset = 0
        for group in caches.groups:
            layout = group.paged.object_layout(chunk_tokens)
            self._regions.append(_Region(group, group.paged.blocks_per_chunk(chunk_tokens), offset))
            offset += layout.payload_bytes
        self.payload_bytes = offset
        places = {
            name: (region, range(number, number + 1))
            for region in self._regions
            for number, name in enumerate(region.group.layer_names)
        }
        self._layers = [places[name] for name in layer_order(caches)]
        self.layers = len(self._layers) if isinstance(copier, HostCopier) else 1
        """In how many parts a chunk can be copied."""

    def check(self, tables: Sequence[Sequence[int]], chunks: int) -> None:
        """Raises ValueError unless every table that is used has block ids for exactly `chunks` chunks."""
        for region in self._regions:
            table = region.group.table
            found = len(tables[table]) if table < len(tables) else 0
            if found != chunks * region.blocks:
                raise ValueError(f"{found} block ids in table {table} for {chunks} chunks of {region.blocks} blocks")

    def batches(self, chunks: Sequence[int]) -> Iterator[Sequence[int]]:
        """These chunks, as many at a time as make a batch."""
        size = max(1, BATCH_BYTES // self.payload_bytes)
        for start in range(0, len(chunks), size):
            yield chunks[start : start + size]

    def gather(
        self, tables: Sequence[Sequence[int]], chunks: Sequence[int], addresses: Sequence[int], layer: int | None = None
    ) -> int:
        """Copy chunks out of their blocks, zeros for `NO_BLOCK`. `chunks` are counted from the start of the tables,
        `addresses` where each of them belongs. `layer`: only this one of `layers`, in `layer_order`. Raises ValueError for a
        null block: its chunk would have a hole."""
        moved = 0
        for region, layers in self._parts(layer):
            blocks = _blocks(tables, region, chunks)
            if NULL_BLOCK in blocks:
                raise ValueError(f"table {region.group.table} has a null block among {blocks}")
            objects = [address + region.offset for address in addresses]
            moved += self.copier.gather(region.group, blocks, objects, layers)
        return moved

    def scatter(
        self, tables: Sequence[Sequence[int]], chunks: Sequence[int], addresses: Sequence[int], layer: int | None = None
    ) -> int:
        """Copy chunks into their blocks, those that are null left out. `layer`: as in `gather`."""
        moved = 0
        for region, layers in self._parts(layer):
            blocks = [NO_BLOCK if block == NULL_BLOCK else block for block in _blocks(tables, region, chunks)]
            objects = [address + region.offset for address in addresses]
            moved += self.copier.scatter(region.group, blocks, objects, layers)
        return moved

    def _parts(self, layer: int | None) -> Sequence[tuple[_Region, range | None]]:
        whole = layer is None or self.layers == 1
        return [(region, None) for region in self._regions] if whole else [self._layers[layer or 0]]


def layer_order(caches: KVCaches) -> list[str]:
    """Names of the layers that have pages, in the order in which the model has them."""
    known = {name for group in caches.groups for name in group.layer_names}
    return [name for name in caches.tensors if name in known]


def _blocks(tables: Sequence[Sequence[int]], region: _Region, chunks: Sequence[int]) -> list[int]:
    table, count = tables[region.group.table], region.blocks
    return [block for chunk in chunks for block in table[chunk * count : (chunk + 1) * count]]
