"""Registers L1's memory with the engine, so that the kernel need not pin the pages of each transfer anew.

Measured with io_uring and O_DIRECT, 4 MiB objects: 0.15 instead of 0.21 core seconds per GB, at the same speed.  Through the
page cache there is nothing to gain.  Registering pins the pages, and so allocates them: an L1 that grows as it is needed is
left alone until it has grown.  Pages that are there stay what they are: L1 gives none back while it lives.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Final

from lmcache_core import AdapterContext, MemoryRegion
from lmcache_native.io import IoEngine

LOOK_SECONDS: Final = 10.0
"""How often it is seen whether L1 has grown; a look at 32 GiB takes some ten milliseconds."""
_LOOK_BYTES: Final = 2**30
_PRESENT: Final = bytes(byte & 1 for byte in range(256))  # the other bits of an answer mean nothing


class ArenaPinning:
    """One thread at a time."""

    def __init__(self, engine: IoEngine, context: AdapterContext) -> None:
        self._engine = engine
        self._context = context
        self._left = [region for region in context.regions if not region.is_file]

    def proceed(self) -> bool:
        """Register what has grown to its full size.  True: there is nothing more to do.  Blocks, for about a second with
        each 10 GiB that are registered."""
        self._left = [region for region in self._left if not (is_resident(region) and self._register(region))]
        return not self._left

    def _register(self, region: MemoryRegion) -> bool:
        if not self._engine.register_memory(region.address, region.length):
            self._context.logger.info(
                "L1 is not pinned for i/o, which costs some CPU; a higher limit on locked memory allows it adapter=%s "
                "bytes=%d",
                self._context.name, region.length,
            )  # fmt: skip
        return True


def is_resident(region: MemoryRegion) -> bool:
    """Is there memory behind every page?  False, too, where the kernel does not say."""
    libc = ctypes.CDLL(None)
    for start in range(0, region.length, _LOOK_BYTES):
        length = min(_LOOK_BYTES, region.length - start)
        pages = ctypes.create_string_buffer(-(-length // mmap.PAGESIZE))
        address = ctypes.c_void_p(region.address + start)
        if libc.mincore(address, ctypes.c_size_t(length), pages) or b"\0" in pages.raw.translate(_PRESENT):
            return False
    return True
