"""Copies of pages by lmcache-native, where it is installed and fits."""

from __future__ import annotations

import errno
from array import array
from importlib import import_module
from typing import Protocol

import numpy as np

from lmcache_kv_layout.chunk_blocks import NO_BLOCK
from lmcache_kv_layout.errors import MemoryFault
from lmcache_kv_layout.page_job import Direction, PageJob

PAGE_COPY_ABI = 1
"""The calling convention that is spoken here; another one is not used."""


class CopyPages(Protocol):
    """`lmcache_native.copy_pages`."""

    def __call__(
        self,
        direction: int,
        bases: object,
        blocks: object,
        objects: object,
        kv_axis: int,
        layers: int,
        first_layer: int,
        end_layer: int,
        slots_per_block: int,
        heads: int,
        head_bytes: int,
        block_stride: int,
        slot_stride: int,
        head_stride: int,
        skip_slots: int,
        threads: int,
    ) -> int: ...


class NativePages:
    """The compiled implementation, with the number of its threads."""

    def __init__(self, copy_pages: CopyPages, threads: int) -> None:
        self._copy_pages = copy_pages
        self._threads = threads

    def copy(self, job: PageJob) -> int:
        group = job.group
        try:
            if job.direction is Direction.GATHER and job.has_gaps:
                self._zero_absent(job)
            return self._copy_pages(
                job.direction,
                job.bases,
                job.blocks,
                job.objects,
                group.kv_axis,
                group.layers,
                job.layers.start,
                job.layers.stop,
                group.slots_per_block,
                group.heads,
                group.head_bytes,
                group.block_stride,
                group.slot_stride,
                group.head_stride,
                job.skip_slots,
                self._threads,
            )
        except OSError as error:
            raise MemoryFault(errno.EFAULT, f"pages vanished while they were copied ({error})") from error

    def _zero_absent(self, job: PageJob) -> None:
        """Gather one slot of zeros, time and again, for blocks that are absent: objects may vanish as pages may."""
        group = job.group
        slot = np.zeros(group.token_bytes, np.uint8)
        self._copy_pages(
            Direction.GATHER,
            array("Q", [slot.ctypes.data]) * len(job.bases),
            array("q", (0 if block == NO_BLOCK else NO_BLOCK for block in job.blocks)),
            job.objects,
            group.kv_axis,
            group.layers,
            job.layers.start,
            job.layers.stop,
            group.slots_per_block,
            1,
            group.token_bytes,
            0,
            0,
            group.token_bytes,
            0,
            self._threads,
        )


def native_pages(threads: int, required: bool) -> NativePages | None:
    """The compiled implementation; without it `None`, or a `RuntimeError` where it is required."""
    try:
        native = import_module("lmcache_native")
    except ImportError:
        native = None
    abi = getattr(native, "PAGE_COPY_ABI", None)
    copy_pages = getattr(native, "copy_pages", None)
    if copy_pages is not None and abi == PAGE_COPY_ABI:
        return NativePages(copy_pages, threads)
    if not required:
        return None
    reason = "is not installed" if native is None else f"has page copies of the convention {abi}, not {PAGE_COPY_ABI}"
    raise RuntimeError(f"lmcache-native {reason}; install the lmcache-native of this release, or copy with numpy")
