"""The module over real storage, and a device that does with each transfer what a test says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lmcache_core import EngineKey, MemoryRegion, encode_tokens
from lmcache_devkit.l1_audit import audit
from lmcache_devkit.module_bench import CHUNK_TOKENS, ModuleBench
from lmcache_kv_layout import PagedGroup
from lmcache_transfer_torch.config import TransferSettings
from lmcache_transfer_torch.descriptors import Storage
from lmcache_transfer_torch.device import DeviceError, Done, TransferJob, WorkerMemory
from lmcache_transfer_torch.devices import Devices
from lmcache_transfer_torch.messages import EngineGroupInfo, Hints
from lmcache_transfer_torch.module import LMCacheDrivenModule
from plugins.transfer_torch.tests.driven_engine import extension

SHAPE = [64, 2, 4, 32]
METADATA = {"dtype": "float32", "shape": SHAPE, "stride": [256, 128, 32, 1], "storage_offset": 0, "device_uuid": "cpu"}
TENSORS = [
    extension({"type": "cpu_shm", "shm_name": f"/{name}", "nbytes": 65536, "version": 1, "metadata": METADATA})
    for name in ("one", "two")
]
BLOCKS = [list(range(1, 13))]
TOKENS = list(range(3 * CHUNK_TOKENS))
NO, YES = (b"", False), (b"event", True)
WORKER = 7


class CueDevice:
    """Does with each job what comes next in its script: `now`, `fail`, `later`, `refuse`, `raise`, `twice`."""

    name = "cpu"

    def __init__(self) -> None:
        self.does = "now"
        self.waiting: list[Done] = []
        self.jobs: list[TransferJob] = []
        self.closed = self.memories = self.swift_bytes = 0
        self.forgets = False
        self.opening: Exception | None = None

    def open_memory(self, storages: Sequence[Storage], groups: Sequence[PagedGroup], chunk_tokens: int) -> WorkerMemory:
        if self.opening:
            raise self.opening
        self.memories += 1
        return CueMemory(self)

    def submit(self, job: TransferJob, done: Done) -> bytes:
        self.jobs.append(job)
        match self.does:
            case "now":
                done(True)
            case "twice":
                done(True)
                done(False)
            case "fail":
                done(False)
            case "refuse":
                raise DeviceError("no")
            case "raise":
                raise RuntimeError("a driver's own")
            case _:
                self.waiting.append(done)
        return b"event"

    def finish(self, arrived: bool = True) -> None:
        self.waiting.pop(0)(arrived)

    def status(self) -> dict[str, object]:
        return {"waiting": len(self.waiting)}

    def close(self) -> None:
        self.closed += 1
        while self.waiting and not self.forgets:
            self.finish(False)


class CueMemory:
    @property
    def swift_bytes(self) -> int:
        return self._device.swift_bytes

    def __init__(self, device: CueDevice) -> None:
        self._device = device

    def submit_gather(self, job: TransferJob, done: Done) -> bytes:
        return self._device.submit(job, done)

    def submit_scatter(self, job: TransferJob, done: Done) -> bytes:
        return self._device.submit(job, done)

    def close(self) -> None:
        self._device.memories -= 1


class Site:
    """The module over real storage, with one worker."""

    def __init__(
        self,
        region: MemoryRegion | None = None,
        settings: Mapping[str, object] | None = None,
        groups: Sequence[EngineGroupInfo] = (),
    ) -> None:
        self.bench = ModuleBench()
        self.device = CueDevice()
        chosen = TransferSettings.model_validate(settings or {})
        self._groups = list(groups)
        context = replace(self.bench.context, region=region)
        devices = Devices(chosen, context, {"cpu": lambda *_: self.device})
        self.module = LMCacheDrivenModule(context, devices, chosen)
        self.handlers = {handler.operation.name: handler for handler in self.module.handlers()}
        self.register()

    def register(self) -> None:
        self.call("register_kv_cache", WORKER, TENSORS, "m", 1, "vllm", Hints(kv_layout="HND"), self._groups)

    def call(self, name: str, *payload: Any) -> Any:
        return self.bench.call(self.handlers[name], *payload)

    def key(self, request: str = "r", first: int = 0, tokens: Sequence[int] = TOKENS) -> EngineKey:
        return EngineKey("m", 1, 0, encode_tokens(tokens), first, len(tokens), request)

    def store(self) -> tuple[bytes, bool]:
        answer: tuple[bytes, bool] = self.call("store", self.key(), WORKER, BLOCKS, b"")
        return answer

    def retrieve(self) -> tuple[bytes, bool]:
        answer: tuple[bytes, bool] = self.call("retrieve", self.key(), WORKER, BLOCKS, b"", 0)
        return answer

    def unregister(self) -> None:
        self.call("unregister_kv_cache", WORKER)

    @property
    def status(self) -> dict[str, Any]:
        return self.module.status()

    def held(self) -> tuple[int, int]:
        counts = self.bench.storage.state_counts()
        assert counts.is_balanced
        audit(self.bench.cache)
        return counts.held, counts.quarantined

    def cached(self) -> int:
        return self.bench.storage.state_counts().cached

    def close(self) -> None:
        self.module.close()
        self.bench.all_leave()
        assert self.held() == (0, 0)
        self.bench.__exit__(None, None, None)
