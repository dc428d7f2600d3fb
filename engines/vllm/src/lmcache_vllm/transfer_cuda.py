"""Copies for pages in the memory of a device, with torch's own operations.

Pages are put in the order of the chunk on the device, which is fast at that, and cross the bus as one run of bytes for
each chunk, straight into or out of the server's memory, which is pinned. All of it runs on a stream of its own, beside the
model's. torch is imported here alone, and only when a device is there.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Sequence
from math import gcd
from typing import Any, Final

from lmcache_vllm.kv_caches import KVCaches, PageGroup

logger = logging.getLogger(__name__)

_WORDS: Final = {8: "int64", 4: "int32", 2: "int16", 1: "uint8"}
"""Bytes are moved as the widest of these that fits everything."""
_NO_BLOCK: Final = -1


class DeviceCopier:
    """For pages of `caches`, which torch tensors hold. One thread calls `gather`, one `scatter`, any the rest."""

    def __init__(self, caches: KVCaches) -> None:
        import torch

        self._torch = torch
        first = next(iter(caches.tensors.values()))
        self._device = (first[0] if isinstance(first, tuple | list) else first).device
        self._on_cuda = caches.device == "cuda"
        self._streams = (
            (torch.cuda.Stream(self._device), torch.cuda.Stream(self._device)) if self._on_cuda else (None, None)
        )
        self._pages = {id(group): self._views(caches, group) for group in caches.groups}

    def attach(self, address: int, length: int) -> None:
        """Pin memory that chunks will lie in. Without it copies are slower, and right all the same."""
        if self._on_cuda:
            code = self._torch.cuda.cudart().cudaHostRegister(address, length, 0)
            if int(code) != 0:
                logger.warning("the server's memory could not be pinned, transfers are slower code=%s", code)

    def detach(self, address: int) -> None:
        """Undo `attach`, before the memory is unmapped."""
        if self._on_cuda:
            self._torch.cuda.cudart().cudaHostUnregister(address)

    def mark(self) -> Callable[[], None] | None:
        """Called by the model's thread: what it returns waits for everything that was given to the device before."""
        if not self._on_cuda:
            return None
        event = self._torch.cuda.Event()
        event.record(self._torch.cuda.current_stream(self._device))
        wait: Callable[[], None] = event.synchronize
        return wait

    def gather(
        self, group: PageGroup, blocks: Sequence[int], chunks: Sequence[int], layers: range | None = None
    ) -> int:
        assert layers is None, "`ChunkPages` asks copiers of devices for whole chunks"
        pages, torch = self._pages[id(group)], self._torch
        _check(group, blocks, chunks)
        with self._running(self._streams[0]) as stream:
            absent = [place for place, block in enumerate(blocks) if block == _NO_BLOCK]
            ids = torch.tensor([max(0, block) for block in blocks], dtype=torch.int64, device=self._device)
            # [chunk][kv and layer][block][slot][head][word]: what a chunk's region is, for each chunk
            staged = torch.stack([page.index_select(0, ids) for page in pages])
            staged[:, absent] = 0
            per_chunk = len(blocks) // len(chunks)
            staged = staged.unflatten(1, (len(chunks), per_chunk)).transpose(0, 1).contiguous()
            hosts = [self._host(address, staged[0]) for address in chunks]
            for host, chunk in zip(hosts, staged, strict=True):
                host.copy_(chunk, non_blocking=True)
            if stream is not None:
                stream.synchronize()
        return int(staged.numel()) * int(staged.element_size()) // len(blocks) * (len(blocks) - len(absent))

    def scatter(
        self, group: PageGroup, blocks: Sequence[int], chunks: Sequence[int], layers: range | None = None
    ) -> int:
        assert layers is None, "`ChunkPages` asks copiers of devices for whole chunks"
        pages, torch = self._pages[id(group)], self._torch
        _check(group, blocks, chunks)
        wanted = [place for place, block in enumerate(blocks) if block != _NO_BLOCK]
        if not wanted:
            return 0
        with self._running(self._streams[1]) as stream:
            per_chunk = len(blocks) // len(chunks)
            shape = (len(chunks), len(pages), per_chunk, *pages[0].shape[1:])
            staged = torch.empty(shape, dtype=pages[0].dtype, device=self._device)
            for chunk, address in zip(staged, chunks, strict=True):
                chunk.copy_(self._host(address, chunk), non_blocking=True)
            ids = torch.tensor([blocks[place] for place in wanted], dtype=torch.int64, device=self._device)
            places = torch.tensor(wanted, dtype=torch.int64, device=self._device)
            rows = staged.transpose(0, 1).flatten(1, 2)
            for page, row in zip(pages, rows, strict=True):
                page.index_copy_(0, ids, row.index_select(0, places))
            if stream is not None:
                stream.synchronize()
        return len(wanted) * len(pages) * int(pages[0][0].numel()) * int(pages[0].element_size())

    def _running(self, stream: Any) -> Any:
        return self._torch.cuda.stream(stream)

    def _views(self, caches: KVCaches, group: PageGroup) -> list[Any]:
        """`[block][slot][head][word]` of each K or V of each layer, in the order of the chunk."""
        torch, paged = self._torch, group.paged
        storages = caches.storages
        strides = (paged.block_stride, paged.slot_stride, paged.head_stride)
        width = gcd(8, paged.head_bytes, *strides, *(offset for _, offset in paged.bases))
        size = (paged.blocks, paged.slots_per_block, paged.heads, paged.head_bytes // width)
        steps = (*(stride // width for stride in strides), 1)
        dtype = getattr(torch, _WORDS[width])
        return [
            torch.empty(0, dtype=dtype, device=self._device).set_(storages[number], offset // width, size, steps)
            for number, offset in paged.bases
        ]

    def _host(self, address: int, like: Any) -> Any:
        """The memory at an address as a tensor of this shape. It owns nothing."""
        count = int(like.numel()) * int(like.element_size())
        memory = (ctypes.c_char * count).from_address(address)
        return self._torch.frombuffer(memory, dtype=like.dtype).view(like.shape)


def _check(group: PageGroup, blocks: Sequence[int], chunks: Sequence[int]) -> None:
    """The device looks at no limits by itself. Raises ValueError."""
    if not chunks or len(blocks) % len(chunks):
        raise ValueError(f"{len(blocks)} blocks are not a whole number for each of {len(chunks)} chunks")
    if blocks and not (min(blocks) >= _NO_BLOCK and max(blocks) < group.paged.blocks):
        raise ValueError(f"block ids from {min(blocks)} to {max(blocks)}; there are {group.paged.blocks} blocks")
