"""The request module over a simulated GPU: a store is visible when the GPU is done with it, and a retrieve brings it back."""

from __future__ import annotations

import ctypes
import dataclasses
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from lmcache_core import EngineKey, SpaceFields, encode_tokens, pack_kv_rank
from lmcache_devkit.module_bench import CHUNK_TOKENS, ModuleBench
from lmcache_transfer_torch.config import TransferSettings
from lmcache_transfer_torch.cuda.device import CudaDevice
from lmcache_transfer_torch.devices import Devices
from lmcache_transfer_torch.messages import EngineGroupInfo, Hints
from lmcache_transfer_torch.module import LMCacheDrivenModule
from plugins.transfer_torch.tests.cuda.simulated_gpu import UUIDS, Machine, compile_for_simulation
from plugins.transfer_torch.tests.driven_engine import extension

SHAPE, STRIDE, NBYTES = [16, 2, 4, 32], [256, 128, 32, 1], 16 * 256 * 4
"""Blocks, heads, slots and items of a layer of float32."""
LAYERS, WORKER = 2, 7
BLOCKS = [[5, 2, 9, 4]]
TOKENS = list(range(CHUNK_TOKENS))


class Site:
    def __init__(self) -> None:
        self.bench, self.machine = ModuleBench(), Machine()
        context = dataclasses.replace(self.bench.context, region=self.bench._arena.region)
        chosen = TransferSettings.model_validate({})
        self.device = CudaDevice(self.machine, compile_for_simulation, context.region, False, 0.01)
        self.module = LMCacheDrivenModule(context, Devices(chosen, context, {"cuda": lambda *_: self.device}), chosen)
        self.handlers = {handler.operation.name: handler for handler in self.module.handlers()}
        self.layers = [self.machine.allocate(NBYTES) for _ in range(LAYERS)]
        self.fill(1)
        tensors = [extension(self.described(address)) for address in self.layers]
        self.call("register_kv_cache", WORKER, tensors, "m", 1, "vllm", Hints(kv_layout="HND"), list[EngineGroupInfo]())

    def described(self, address: int, shape: Sequence[int] = SHAPE, stride: Sequence[int] = STRIDE) -> dict[str, Any]:
        return {
            "type": "cuda_raw",
            "ipc_handle": self.machine.share(address, NBYTES),
            "alloc_offset": 0,
            "nbytes": NBYTES,
            "version": 1,
            "metadata": {
                "dtype": "float32",
                "shape": shape,
                "stride": stride,
                "storage_offset": 0,
                "device_uuid": UUIDS[0],
            },
        }

    def call(self, name: str, *payload: Any) -> Any:
        return self.bench.call(self.handlers[name], *payload)

    def fill(self, seed: int) -> None:
        for number, address in enumerate(self.layers):
            ctypes.memmove(address, random.Random(seed + number).randbytes(NBYTES), NBYTES)

    def blocks(self) -> list[bytes]:
        return [ctypes.string_at(address + block * 1024, 1024) for address in self.layers for block in BLOCKS[0]]

    def key(self) -> EngineKey:
        return EngineKey("m", 1, 0, encode_tokens(TOKENS), 0, CHUNK_TOKENS, "r")

    def until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.002)

    def cached(self) -> int:
        return self.bench.storage.state_counts().cached

    def close(self) -> None:
        self.module.close()
        self.bench.all_leave()
        counts = self.bench.storage.state_counts()
        assert (counts.held, counts.quarantined) == (0, 0)
        self.bench.__exit__(None, None, None)
        assert self.machine.violations == []


def test_a_store_is_visible_when_the_gpu_is_done_and_comes_back() -> None:
    site = Site()
    assert site.module.status()["registrations_refused"] == {}
    # The first one goes through a buffer, on its own thread; later ones do not wait for the worker.
    assert site.call("store", site.key(), WORKER, BLOCKS, _happened(site))[1]
    site.until(lambda: site.cached() == 1)
    stored = site.blocks()
    site.fill(50)
    handle, moved = site.call("retrieve", site.key(), WORKER, BLOCKS, _happened(site), 0)
    assert moved
    site.until(lambda: site.machine.has_happened(handle))
    assert site.blocks() == stored
    site.until(lambda: site.module.status()["transfers_in_flight"] == 0)
    site.close()


def test_a_store_that_waits_for_its_worker_is_answered_and_not_yet_visible() -> None:
    site = Site()
    arena = site.device._arena
    assert arena is not None
    region = arena.region
    assert region is not None
    site.until(lambda: arena.covers(region.address, region.length))
    handle, happen = site.machine.record_event()
    event, moved = site.call("store", site.key(), WORKER, BLOCKS, handle)
    assert moved
    assert event
    assert site.cached() == 0
    assert not site.machine.has_happened(event)
    happen()
    site.until(lambda: site.cached() == 1)
    assert site.machine.has_happened(event)
    site.close()


@pytest.mark.parametrize("handle", [b"", b"stub_ipc_handle", b"\xee" * 64])
def test_an_event_that_is_none_is_answered_with_false(handle: bytes) -> None:
    site = Site()
    assert site.call("store", site.key(), WORKER, BLOCKS, handle) == (b"", False)
    assert site.cached() == 0
    site.close()


def test_a_gpu_that_breaks_in_a_store_leaves_nothing_visible() -> None:
    site = Site()
    site.machine.faults.in_copy = True
    site.call("store", site.key(), WORKER, BLOCKS, _happened(site))
    site.until(lambda: site.module.status()["transfers_in_flight"] == 0)
    assert site.cached() == 0
    assert "cannot be used" in str(_again(site))
    site.close()


def test_a_retrieve_that_fails_on_its_way_is_answered_with_false_and_the_event_behind_it() -> None:
    """A client that gets no event gives the blocks to another request, and what is in the streams still writes them."""
    site = Site()
    assert site.call("store", site.key(), WORKER, BLOCKS, _happened(site))[1]
    site.until(lambda: site.cached() == 1)
    handle, happen = site.machine.record_event()
    site.machine.calls.clear()
    site.machine.faults.only, site.machine.faults.at_call = "launch", 1
    event, moved = site.call("retrieve", site.key(), WORKER, BLOCKS, handle, 0)
    assert not moved
    assert event
    assert not site.machine.has_happened(event)
    happen()
    site.until(lambda: site.machine.has_happened(event))
    site.until(lambda: site.module.status()["transfers_in_flight"] == 0)
    assert site.module.status()["transfers_failed"] == 1
    site.close()


def test_rows_of_a_buffer_are_stored_and_come_to_other_rows() -> None:
    site = Site()
    context, storage = site.bench.context, site.bench.storage
    [mover] = context.page_movers
    rows, width = 64, 32
    site.layers = [site.machine.allocate(NBYTES) for _ in range(LAYERS)]
    tensors = [extension(site.described(each, (2, rows, width), (rows * width, width, 1))) for each in site.layers]
    mover.register_rows(9, b"c", tensors, "rows", 1)
    worker = context.workers.find(9)
    assert worker is not None
    space = context.space(SpaceFields("rows", ""), pack_kv_rank(1, 0), worker.layout)
    filled, _ = storage.reserve(worker.token, space, [b"h" * 32])
    taken = [*range(rows - 1, rows - CHUNK_TOKENS, -1), -1]
    site.fill(3)
    stored = [_row(site, layer, kv, row) for kv in (0, 1) for layer in range(LAYERS) for row in taken]
    assert mover.copy_rows(
        worker, filled, taken, True, _happened(site), lambda arrived: arrived and storage.publish(filled, 0, "r")
    )[1]
    site.until(lambda: site.cached() == 1)
    held = storage.acquire(worker.token, "r", space, [b"h" * 32], 0)
    assert held is not None
    assert bytes(storage.payload(held.slots[0])) == b"".join(stored)
    site.fill(50)
    given = [-1, *range(1, CHUNK_TOKENS)]
    before = [_row(site, layer, kv, 0) for kv in (0, 1) for layer in range(LAYERS)]
    ended: list[bool] = []

    def ends(arrived: bool) -> bool:
        ended.append(arrived)
        return arrived

    event, moved = mover.copy_rows(worker, held, given, False, _happened(site), ends)
    assert moved
    site.until(lambda: site.machine.has_happened(event) and ended == [True])
    storage.release(held)
    after = [_row(site, layer, kv, at) for kv in (0, 1) for layer in range(LAYERS) for at in range(CHUNK_TOKENS)]
    for plane in range(2 * LAYERS):
        first = plane * CHUNK_TOKENS
        assert after[first] == before[plane]
        assert after[first + 1 : first + CHUNK_TOKENS] == stored[first + 1 : first + CHUNK_TOKENS]
    site.close()


def _row(site: Site, layer: int, kv: int, row: int) -> bytes:
    """128 bytes of a buffer of 64 rows; zeros for a row that is -1."""
    return bytes(128) if row < 0 else ctypes.string_at(site.layers[layer] + (kv * 64 + row) * 128, 128)


def _again(site: Site) -> Any:
    site.call("unregister_kv_cache", WORKER)
    tensors = [extension(site.described(site.layers[0]))]
    site.call("register_kv_cache", 8, tensors, "m", 1, "vllm", Hints(kv_layout="HND"), list[EngineGroupInfo]())
    return site.module.status()["registrations_refused"]


def _happened(site: Site) -> bytes:
    handle, happen = site.machine.record_event()
    happen()
    return handle
