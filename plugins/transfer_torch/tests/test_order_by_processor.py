"""Pages do not say in which order a block has its elements: on the CPU the processor decides it, on a GPU nothing does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lmcache_devkit.module_bench import ModuleBench
from lmcache_transfer_torch.config import TransferSettings
from lmcache_transfer_torch.devices import Devices
from lmcache_transfer_torch.messages import Hints
from lmcache_transfer_torch.one_row import Claim
from lmcache_transfer_torch.registry import Registry
from plugins.transfer_torch.tests.cue_site import WORKER, CueDevice
from plugins.transfer_torch.tests.driven_engine import extension

BLOCKS, HEADS, HEAD = 4, 2, 64


def tensor(device: str, dtype: str, block_tokens: int) -> dict[str, object]:
    shape = [BLOCKS, HEADS, block_tokens, HEAD]
    stride = [HEADS * block_tokens * HEAD, block_tokens * HEAD, HEAD, 1]
    metadata = {"dtype": dtype, "shape": shape, "stride": stride, "storage_offset": 0, "device_uuid": "one"}
    size = {"nbytes": BLOCKS * stride[0] * 4}
    if device == "cpu":
        return {"type": "cpu_shm", "shm_name": "/one", "version": 1, "metadata": metadata, **size}
    return {"type": "cuda_raw", "ipc_handle": bytes(64), "alloc_offset": 0, "version": 1, "metadata": metadata, **size}


@pytest.mark.parametrize("has_amx", [True, False])
@pytest.mark.parametrize(
    ("device", "dtype", "block_tokens", "block_slots", "packed"),
    [
        ("cpu", "bfloat16", 32, 32, True),
        ("cpu", "uint8", 64, 64, True),
        ("cpu", "bfloat16", 16, 16, False),
        ("cpu", "float32", 32, 32, False),
        ("cuda", "bfloat16", 32, 0, False),
    ],
)
def test_layouts(has_amx: bool, device: str, dtype: str, block_tokens: int, block_slots: int, packed: bool) -> None:
    with ModuleBench() as bench:
        context, settings = (
            replace(bench.context, has_amx=has_amx, chunk_tokens=64),
            TransferSettings.model_validate({}),
        )
        registry = Registry(context, Devices(settings, context, {device: lambda *_: CueDevice()}), settings)
        described = [extension(tensor(device, dtype, block_tokens))]
        registry.register(WORKER, Claim(b"c", described, "m", 1, "vllm", Hints(kv_layout="HND"), []))
        assert registry.refused() == {}
        worker = bench.workers.find(WORKER)
        assert worker is not None
        blocks = f" in blocks of {block_slots}" if block_slots else ""
        assert str(worker.layout) == f"{dtype}[1, 64, 128]{blocks}{' ordered amx' if has_amx and packed else ''}"
        registry.close()
