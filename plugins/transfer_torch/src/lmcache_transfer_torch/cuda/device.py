"""GPUs of this machine, for the workers whose KV cache lies on them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from lmcache_core import MemoryRegion, ModuleContext
from lmcache_kv_layout import PagedGroup
from lmcache_transfer_torch.config import TransferSettings
from lmcache_transfer_torch.cuda.arena_side import ArenaSide
from lmcache_transfer_torch.cuda.completions import WATCH_SECONDS
from lmcache_transfer_torch.cuda.driver import GpuDrivers
from lmcache_transfer_torch.cuda.gpu import CLOSE_SECONDS, Gpu
from lmcache_transfer_torch.cuda.libcuda import CudaDrivers
from lmcache_transfer_torch.cuda.memory import CudaMemory
from lmcache_transfer_torch.cuda.page_images import Compile, PageCompiler
from lmcache_transfer_torch.cuda.worker_storage import place_of
from lmcache_transfer_torch.descriptors import Storage
from lmcache_transfer_torch.device import DeviceError

_CAPABILITY_MIN: Final = 80


class CudaDevice:
    """Implements `device.Device`.  Each GPU is opened when the first worker on it registers."""

    name = "cuda"

    def __init__(
        self,
        drivers: GpuDrivers,
        compile_kernel: Compile,
        region: MemoryRegion | None,
        isolated_ipc: bool,
        watch_seconds: float = WATCH_SECONDS,
    ) -> None:
        self._drivers = drivers
        self._compile = compile_kernel
        self._region = region
        self._isolated_ipc = isolated_ipc
        self._watch_seconds = watch_seconds
        self._lock = threading.Lock()  # held while a GPU is opened, by those who register
        self._gpus: dict[str, Gpu] = {}
        self._arena: ArenaSide | None = None

    def open_memory(self, storages: Sequence[Storage], groups: Sequence[PagedGroup], chunk_tokens: int) -> CudaMemory:
        places = [place_of(storage) for storage in storages]
        uuids = {place.uuid for place in places}
        if len(uuids) != 1:
            raise DeviceError(f"one worker's KV cache lies on {len(uuids)} GPUs; it must lie on one")
        gpu = self._gpu(uuids.pop())
        gpu.check()
        try:
            return CudaMemory(gpu, places, groups, chunk_tokens)
        except ValueError as error:
            raise DeviceError(str(error)) from None

    def status(self) -> dict[str, object]:
        gpus, arena = list(self._gpus.values()), self._arena
        return {"gpus": [gpu.status() for gpu in gpus], "l1": arena.status() if arena else {}}

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        gpus = dict(self._gpus)
        # What was pinned is unpinned through a GPU, so before any of them is closed, and after all transfers have ended.
        drained = [gpu.drain(seconds) for gpu in gpus.values()]
        if not all(drained):
            return
        if self._arena is not None:
            self._arena.close()
        for gpu in gpus.values():
            gpu.close()
        self._gpus.clear()

    def _gpu(self, uuid: str) -> Gpu:
        with self._lock:
            known = self._gpus.get(uuid)
            if known is None:
                known = self._gpus[uuid] = self._open(uuid)
            return known

    def _open(self, uuid: str) -> Gpu:
        info = next((gpu for gpu in self._drivers.gpus if gpu.uuid == uuid), None)
        if info is None:
            seen = ", ".join(gpu.uuid for gpu in self._drivers.gpus) or "none"
            raise DeviceError(
                f"GPU {uuid} is not visible to the server, which sees: {seen}; start it with the GPUs of its engines "
                "(CUDA_VISIBLE_DEVICES, or the container's GPUs)"
            )
        if info.capability < _CAPABILITY_MIN:
            raise DeviceError(
                f"GPU {uuid} ({info.name}) has compute capability {info.capability / 10}; at least "
                f"{_CAPABILITY_MIN / 10} is needed"
            )
        driver = self._drivers.open(info.ordinal)
        with ExitStack() as undo:
            undo.callback(driver.close)
            arena = self._arena
            if arena is None:
                arena = ArenaSide.of(self._region, driver)
                undo.callback(arena.close)
            gpu = Gpu(driver, self._compile, arena, self._isolated_ipc, self._watch_seconds)
            undo.pop_all()
        self._arena = arena
        return gpu


def open_cuda_device(settings: TransferSettings, context: ModuleContext) -> CudaDevice:
    """Raises DeviceError where there is no GPU."""
    return CudaDevice(CudaDrivers(), PageCompiler(), context.region, settings.isolated_ipc)
