"""Host memory: workers on a CPU keep their KV cache in shared-memory segments, and name them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, Literal

from lmcache_kv_layout import PageCopier, PagedGroup
from lmcache_transfer_torch.cpu.memory import CpuMemory
from lmcache_transfer_torch.cpu.segment import CpuSegment
from lmcache_transfer_torch.descriptors import CpuStorage, Storage
from lmcache_transfer_torch.device import DeviceError

logger = logging.getLogger(__name__)

SEGMENTS_MAX: Final = 512
"""Segments of one worker, which has one or two for each layer.  Each takes a descriptor of the server's."""


class CpuDevice:
    """Implements `device.Device`.  Keeps nothing: each worker's memory is its own."""

    name = "cpu"

    def __init__(self, threads: int, native: Literal["auto", "off"] = "auto") -> None:
        self._copier = PageCopier(threads=threads, native=native)
        if not self._copier.native:
            logger.warning(
                "copies for engines on the CPU are slower without lmcache-native, and a worker that cuts off its shared memory "
                "in the middle of one ends this server: pip install lmcache-native"
            )

    def open_memory(self, storages: Sequence[Storage], groups: Sequence[PagedGroup], chunk_tokens: int) -> CpuMemory:
        if len(storages) > SEGMENTS_MAX:
            raise DeviceError(
                f"a worker has {len(storages)} segments of shared memory; {SEGMENTS_MAX} are mapped at most"
            )
        segments: list[CpuSegment] = []
        try:
            for storage in storages:
                if not isinstance(storage, CpuStorage):
                    raise DeviceError(f"host memory is no {type(storage).__name__}")
                segments.append(CpuSegment(storage.shm_name, storage.nbytes))
        except BaseException:
            for segment in segments:
                segment.close()
            raise
        return CpuMemory(segments, groups, self._copier)

    def status(self) -> dict[str, object]:
        return {"native": self._copier.native}

    def close(self) -> None:
        """Copies ran on their callers' threads, which have ended."""
