"""The device's copier on torch tensors in host memory: everything but streams, events and pinned memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engines.vllm.tests.worker_kit import (
    CHUNK_TOKENS,
    FakeTensor,
    Paged,
    fused_hnd,
    fused_nhd,
    latent,
    separate_planes,
    two_groups,
)
from lmcache_kv_layout import LayoutError
from lmcache_vllm.kv_caches import KVCaches
from lmcache_vllm.placement import CacheGroup
from lmcache_vllm.transfer_copiers import copier_for
from lmcache_vllm.transfer_cuda import DeviceCopier
from lmcache_vllm.transfer_pages import ChunkPages, HostCopier

torch = pytest.importorskip("torch")

CHUNKS = 3


def as_torch(paged: Paged) -> dict[str, Any]:
    """The same memory, as torch sees it."""
    storages: dict[int, Any] = {}
    tensors = {}
    for name, tensor in paged.tensors.items():
        whole = storages.setdefault(tensor.data_ptr(), torch.from_numpy(tensor._storage).flatten())
        tensors[name] = torch.as_strided(whole, tensor.shape, tensor.stride(), tensor.storage_offset())
    return tensors


def tables(paged: Paged) -> list[list[int]]:
    """The last chunk is half a chunk."""
    counts = [CHUNKS * CHUNK_TOKENS // group.block_tokens for group in paged.groups]
    absent = [CHUNK_TOKENS // 2 // group.block_tokens for group in paged.groups]
    return [
        [*((7 * index + 3) % 31 + 1 for index in range(count - none)), *[-1] * none]
        for count, none in zip(counts, absent, strict=True)
    ]


@pytest.mark.parametrize("make", [fused_hnd, fused_nhd, separate_planes, latent, two_groups])
def test_it_moves_the_bytes_that_the_host_copier_moves(make: Callable[[], Paged]) -> None:
    paged = make()
    caches = KVCaches(as_torch(paged), paged.groups, paged.kv_layout)
    host, device = (ChunkPages(caches, CHUNK_TOKENS, copier) for copier in (HostCopier(), DeviceCopier(caches)))
    objects = np.full((2, CHUNKS, host.payload_bytes), 0xAB, np.uint8)
    addresses = [[int(chunk.ctypes.data) for chunk in side] for side in objects]
    moved = [
        pages.gather(tables(paged), range(CHUNKS), places)
        for pages, places in zip((host, device), addresses, strict=True)
    ]
    assert moved == [CHUNKS * host.payload_bytes - host.payload_bytes // 2] * 2
    assert objects[0].any()
    np.testing.assert_array_equal(objects[1], objects[0])

    before = {name: pages.copy() for name, pages in paged.pages.items()}
    elsewhere = [
        [0 if place == 1 or block < 0 else 39 - block for place, block in enumerate(table)] for table in tables(paged)
    ]
    seen = []
    for pages in (host, device):
        for name in before:
            paged.pages[name][...] = before[name]
        moved.append(pages.scatter(elsewhere, [2, 0], [addresses[0][2], addresses[0][0]]))
        seen.append({name: content.copy() for name, content in paged.pages.items()})
    assert moved[2] == moved[3] > 0
    for name, expected in seen[0].items():
        np.testing.assert_array_equal(seen[1][name], expected)
    assert any((seen[0][name] != before[name]).any() for name in before)


def test_block_ids_are_checked_before_the_device_sees_them() -> None:
    paged = fused_hnd()
    caches = KVCaches(as_torch(paged), paged.groups, paged.kv_layout)
    copier, group = DeviceCopier(caches), caches.groups[0]
    chunk = np.zeros(1 << 16, np.uint8)
    for blocks in ([1, 40], [1, -2]):
        for call in (copier.gather, copier.scatter):
            with pytest.raises(ValueError, match="there are 40 blocks"):
                call(group, blocks, [chunk.ctypes.data])
    with pytest.raises(ValueError, match="3 blocks"):
        copier.gather(group, [1, 2, 3], [chunk.ctypes.data, chunk.ctypes.data])
    with pytest.raises(ValueError, match="2 blocks"):
        copier.scatter(group, [1, 2], [])
    assert copier.scatter(group, [-1, -1], [chunk.ctypes.data]) == 0
    assert not chunk.any()


def test_host_memory_needs_no_events_and_no_pinning() -> None:
    paged = fused_hnd()
    copier = DeviceCopier(KVCaches(as_torch(paged), paged.groups, paged.kv_layout))
    copier.attach(0, 0)
    copier.detach(0)
    assert copier.mark() is None


def test_the_copier_is_chosen_by_where_the_pages_are() -> None:
    paged = fused_hnd()
    assert isinstance(copier_for(KVCaches(paged.tensors, paged.groups, "HND")), HostCopier)
    elsewhere = {name: FakeTensor(tensor.array, tensor._storage, "xpu") for name, tensor in paged.tensors.items()}
    with pytest.raises(LayoutError, match="'xpu' cannot be copied; cpu and cuda can"):
        copier_for(KVCaches(elsewhere, paged.groups, "HND"))
    two_devices = dict(paged.tensors)
    two_devices["layer.0"] = elsewhere["layer.0"]
    with pytest.raises(LayoutError, match="cpu, xpu; one device is understood"):
        KVCaches(two_devices, paged.groups, "HND")


def test_what_is_registered_must_be_what_the_groups_say() -> None:
    paged = fused_hnd()
    with pytest.raises(LayoutError, match=r"'layer\.9' of a KV cache group was not registered"):
        KVCaches(paged.tensors, (CacheGroup(("layer.0", "layer.9"), 16),), "HND")
    with pytest.raises(LayoutError, match="pages of 16 slots for blocks of 64 tokens"):
        KVCaches(paged.tensors, (CacheGroup(tuple(paged.tensors), 64),), "HND")


def test_a_layer_that_shares_anothers_pages_is_stored_once() -> None:
    paged = fused_hnd()
    shared = {**paged.tensors, "layer.shared": paged.tensors["layer.1"]}
    group = CacheGroup((*paged.groups[0].layer_names, "layer.shared"), 16)
    assert KVCaches(shared, (group,), "HND").parts(32) == KVCaches(paged.tensors, paged.groups, "HND").parts(32)
