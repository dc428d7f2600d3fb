"""What `HiCacheNode` must do, on SGLang's own classes: its abstract class, its factory, host pools without a GPU, and the
functions of its controller that call a storage.  A program of SGLang's environment: prints what each check said, as JSON.

Arguments: the server's port, its HTTP port, and its process id."""

from __future__ import annotations

import inspect
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
import urllib.request
from array import array
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

import torch
from sglang.srt.managers.cache_controller import HiCacheController, PrefetchOperation, StorageOperation
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    PoolName,
    PoolTransfer,
)
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.storage import StorageBackendFactory
from sglang.srt.mem_cache.utils import get_storage_hash_str
from sglang.srt.runtime_context import get_context

from lmcache_sglang import HiCacheNode, hicache
from lmcache_sglang.weights import Weights

PORT, HTTP_PORT, PID = map(int, sys.argv[1:4])
LAYERS, HEADS, SIZE, PAGE, PAGES = 3, 2, 8, 16, 300
LAYOUTS: Final = ("layer_first", "page_first", "page_first_direct")
KINDS: Final = ("mha", "mla")
SECONDS: Final = 60.0


def pool_of(
    kind: str = "mha",
    layout: str = "page_first",
    *,
    page: int = PAGE,
    pages: int = PAGES,
    size: int = SIZE,
    seed: int = 0,
) -> Any:
    """A host pool of SGLang, of random numbers, or of zeros."""
    shared: dict[str, Any] = {
        "host_to_device_ratio": 1.0,
        "host_size": 0,
        "page_size": page,
        "layout": layout,
        "pin_memory": False,
        "device_capacity_tokens": 4 * page,
        "start_layer": 0,
        "end_layer": LAYERS,
        "host_token_capacity": pages * page,
    }
    with host_memory_budget_scope(2**31):
        if kind == "mha":
            device = MHATokenToKVPool(4 * page, page, torch.float32, HEADS, size, LAYERS, "cpu", False)
            pool = MHATokenToKVPoolHost(device.get_device_pool_infos()[0].buffer_info, **shared)
        else:
            rows = MLATokenToKVPool(4 * page, page, torch.float32, size, size, LAYERS, "cpu", False)
            info = rows.get_device_pool_infos()[0].buffer_info
            pool = MLATokenToKVPoolHost(info, target_layer_num=LAYERS, **shared)
    filled = torch.randn(pool.kv_buffer.shape, generator=torch.Generator().manual_seed(seed))
    pool.kv_buffer.copy_(filled) if seed else pool.kv_buffer.zero_()
    return pool


def storage_of(pool: Any, *, rank: int = 0, extra: dict[str, Any] | None = None) -> Any:
    """As SGLang makes one."""
    chosen = {
        "backend_name": "lmcache",
        "module_path": "lmcache_sglang",
        "class_name": "HiCacheNode",
        "interface_v1": 1,
    }
    more = {"port": PORT, "lookup_timeout_ms": 5_000, "timeout_seconds": 3.0, "heartbeat_seconds": 0.5}
    config = HiCacheStorageConfig(
        tp_rank=rank,
        tp_size=2,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=isinstance(pool, MLATokenToKVPoolHost),
        enable_storage_metrics=False,
        is_page_first_layout=getattr(pool, "layout", "") == "page_first",
        model_name="m",
        extra_config={**chosen, **more, **(extra or {})},
    )
    storage = StorageBackendFactory.create_backend("dynamic", config, pool)
    storage.register_mem_pool_host(pool)
    storage.register_mem_host_pool_v2(pool, PoolName.KV)
    storage.on_host_pools_registered()
    return storage


def key_of(prompt: int, tokens: int, **names: str) -> RadixKey:
    return RadixKey(array("q", range(prompt, prompt + tokens)), **names)


def hashes_of(prompt: int, pages: int, page: int = PAGE) -> list[str]:
    return list(get_storage_hash_str(key_of(prompt, pages * page), page_size=page))


def slots(*pages: int, page: int = PAGE) -> torch.Tensor:
    return torch.cat([torch.arange(each * page, (each + 1) * page) for each in pages])


def page_of(pool: Any, number: int) -> torch.Tensor:
    return pool.get_data_page(number * pool.page_size).clone()


def refused(ask: Any) -> str:
    try:
        ask()
    except Exception as error:  # noqa: BLE001 - what it says is what is checked
        return f"{type(error).__name__}: {error}"
    return "taken"


def check_the_interface_is_that_for_which_it_was_written() -> None:
    assert HiCacheStorage.__abstractmethods__ == {"get", "batch_get", "set", "batch_set", "exists"}
    for name, method in inspect.getmembers(HiCacheStorage, inspect.isfunction):
        there, here = (list(inspect.signature(each).parameters) for each in (method, getattr(HiCacheNode, name)))
        assert here == there, (name, here, there)


def check_pages_go_and_come_in_each_pool_and_layout() -> None:
    for kind in KINDS:
        for layout in LAYOUTS:
            source, target = pool_of(kind, layout, seed=1), pool_of(kind, layout)
            storing, loading = storage_of(source), storage_of(target)
            hashes = hashes_of(1, 3)
            assert storing.batch_exists(hashes) == 0, (kind, layout)
            assert storing.batch_set_v1(hashes, slots(3, 1, 5)) == [True] * 3
            assert storing.batch_set_v1(hashes, slots(3, 1, 5)) == [True] * 3, "again"
            assert loading.batch_exists([*hashes, *hashes_of(900, 1)]) == 3
            assert loading.batch_get_v1([*hashes, *hashes_of(900, 1)], slots(0, 7, 2, 9)) == [True] * 3 + [False]
            for one, other in zip((3, 1, 5), (0, 7, 2), strict=True):
                assert torch.equal(page_of(source, one), page_of(target, other)), (kind, layout)
            assert not any(page_of(target, number).any() for number in range(PAGES) if number not in (0, 7, 2))
            storing.close()
            loading.close()


def check_flat_pages_are_the_same_objects() -> None:
    for kind in KINDS:
        for layout in LAYOUTS:
            source, target = pool_of(kind, layout, seed=2), pool_of(kind, layout)
            storage = storage_of(target)
            hashes = hashes_of(2, 4)
            assert storage.batch_set(hashes[:2], [page_of(source, 1), page_of(source, 2)])
            assert storage.set(hashes[2], page_of(source, 3))
            assert storage.batch_get_v1(hashes[:3], slots(1, 2, 3)) == [True] * 3
            assert all(torch.equal(page_of(source, each), page_of(target, each)) for each in (1, 2, 3)), (kind, layout)
            flat = [target.get_dummy_flat_data_page() for _ in hashes]
            found = storage.batch_get(hashes, flat)
            assert found[3] is None
            for number, each in enumerate(found[:3], 1):
                assert torch.equal(each.flatten(), page_of(source, number).flatten()), (kind, layout)
                target.set_from_flat_data_page(PAGE * (number + 10), each)
                assert torch.equal(page_of(source, number), page_of(target, number + 10))
            assert (storage.exists(hashes[0]), storage.exists(hashes[3])) == (True, False)
            assert storage.get(hashes[3], flat[0]) is None
            storage.close()


def check_the_second_interface_has_the_same_keys() -> None:
    source, target = pool_of(seed=3), pool_of()
    storing, loading = storage_of(source), storage_of(target)
    hashes = hashes_of(3, 3)
    of_kv = [PoolTransfer(PoolName.KV, host_indices=slots(1, 2, 3), keys=hashes)]
    assert storing.batch_set_v2(of_kv) == {PoolName.KV: [True] * 3}
    found = loading.batch_exists_v2([*hashes, *hashes_of(901, 1)], of_kv)
    assert (found.kv_hit_pages, found.extra_pool_hit_pages) == (3, {PoolName.KV: 3})
    assert found.restorable_prefix_pages == [1, 2, 3]
    assert loading.batch_get_v2(of_kv) == {PoolName.KV: [True] * 3}
    assert all(torch.equal(page_of(source, each), page_of(target, each)) for each in (1, 2, 3))
    assert loading.batch_exists_v2(hashes_of(901, 1)).kv_hit_pages == 0
    assert loading.batch_get_v2([]) == {}
    storing.close()
    loading.close()


def check_ranks_layouts_and_page_sizes_share_nothing_that_differs() -> None:
    for kind in KINDS:
        storing = storage_of(pool_of(kind, seed=4))
        hashes = hashes_of(4, 2)
        assert storing.batch_set_v1(hashes, slots(1, 2)) == [True] * 2
        others = {
            "another rank": storage_of(pool_of(kind), rank=1),
            "another layout": storage_of(pool_of(kind, "layer_first")),
            "another page": storage_of(pool_of(kind, page=32)),
        }
        found = {name: each.batch_exists(hashes) for name, each in others.items()}
        of_mla = 2 if kind == "mla" else 0  # every rank has all of it
        assert found == {"another rank": of_mla, "another layout": 0, "another page": 0}
        for each in (storing, *others.values()):
            each.close()


def controller_of(storage: Any, pool: Any) -> Any:
    """As much of SGLang's controller as calls a storage, with its own functions."""
    controller = object.__new__(HiCacheController)
    controller.storage_backend, controller.page_size, controller.storage_host_pool = storage, PAGE, pool
    controller.page_get_func = controller._page_get_zero_copy
    controller.page_set_func = controller._page_set_zero_copy
    controller.prefetch_sync_queue = queue.Queue()
    return controller


def check_sglangs_controller_stores_and_loads_in_batches_and_salts_are_apart() -> None:
    source, target = pool_of(seed=5), pool_of()
    storing, loading = (controller_of(storage_of(each), each) for each in (source, target))
    pages = 200  # two batches
    for salt in ("one", None):
        key = key_of(5, pages * PAGE, **({"cache_salt": salt} if salt else {}))
        hashes = get_storage_hash_str(key, page_size=PAGE)
        backup = StorageOperation(slots(*range(pages)), key, hash_value=hashes)
        asking = PrefetchOperation("r", key)
        assert loading._storage_hit_query(asking)[1] == 0, salt
        storing._page_backup(backup)
        assert backup.completed_tokens == pages * PAGE
    assert loading._storage_hit_query(PrefetchOperation("r", key_of(5, pages * PAGE, extra_key="x")))[1] == 0
    operation = PrefetchOperation("r", key_of(5, (pages + 1) * PAGE))
    operation.hash_value, hit = loading._storage_hit_query(operation)
    assert hit == pages * PAGE
    operation.host_indices = slots(*range(50, 50 + pages))
    assert loading._page_transfer(operation) == pages
    assert all(torch.equal(page_of(source, each), page_of(target, each + 50)) for each in range(pages))
    loading.page_get_func = loading._generic_page_get
    operation.host_indices = slots(*range(pages))
    assert loading._page_transfer(operation) == pages
    assert all(torch.equal(page_of(source, each), page_of(target, each)) for each in range(pages))
    storing.storage_backend.close()
    loading.storage_backend.close()


def status() -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{HTTP_PORT}/status", timeout=SECONDS) as answer:
        return json.load(answer)


def check_pages_that_only_the_disk_has_come_back() -> None:
    source, target = pool_of(seed=6), pool_of()
    storing, loading = storage_of(source), storage_of(target)
    hashes = hashes_of(6, 8)
    assert all(storing.batch_set_v1(hashes, slots(*range(8))))
    until = time.monotonic() + SECONDS
    while time.monotonic() < until and (
        (now := status())["store"]["backlog_bytes"] or any(each["jobs_in_flight"] for each in now["l2"])
    ):
        time.sleep(0.05)
    asked = urllib.request.Request(f"http://127.0.0.1:{HTTP_PORT}/cache/clear", method="POST")
    urllib.request.urlopen(asked, timeout=SECONDS).close()
    assert not status()["l1"]["cached"]
    assert loading.batch_get_v1(hashes, slots(*range(8))) == [True] * 8, "without a question before"
    assert all(torch.equal(page_of(source, each), page_of(target, each)) for each in range(8))
    storing.close()
    loading.close()


def check_what_has_no_room_is_not_answered_as_stored() -> None:
    source = pool_of(page=64, pages=60, size=1024, seed=7)  # 3 MiB a page
    storing = storage_of(source)
    hashes = hashes_of(7, 60, page=64)
    stored = storing.batch_set_v1(hashes, slots(*range(60), page=64))
    count = stored.index(False)
    assert 0 < count < 60
    assert stored == [True] * count + [False] * (60 - count)
    assert storing.batch_exists(hashes) >= count
    storing.close()


def check_what_cannot_be_meant_is_refused() -> None:
    pool = pool_of()
    storage = storage_of(pool)
    (sha,) = hashes_of(8, 1)
    other = PoolTransfer(PoolName.SWA, host_indices=slots(1), keys=[sha])
    said = {
        refused(lambda: storage.batch_get_v1([sha], slots(1)[:-1])): "15 slots do not fill whole pages of 16",
        refused(lambda: storage.batch_get_v1([sha], slots(1) + 1)): "follow each other",
        refused(lambda: storage.batch_set_v1([sha], slots(PAGES))): "page 300 of a pool of 300",
        refused(lambda: storage.batch_set_v1([sha], slots(0) - PAGE)): "of a pool of 300",
        refused(lambda: storage.batch_set_v1([sha], slots(1, 2))): "1 hashes for 2 pages",
        refused(lambda: storage.batch_get_v1(["ab" * 16], slots(1))): "has 16 bytes; a SHA-256 has 32",
        refused(lambda: storage.batch_exists(["page"])): "'page' is not hexadecimal",
        refused(lambda: storage.batch_exists([sha, sha])): "there twice",
        refused(lambda: storage.batch_get_v2([other])): "the pool swa: only that of KV is known",
        refused(lambda: storage.batch_exists_v2([sha], [other])): "the pool swa: only that of KV is known",
        refused(lambda: storage.get(sha)): "a flat page is a contiguous tensor",
        refused(lambda: storage.set(sha, torch.zeros(3))): "a flat page of 12 bytes; the pool's have",
        refused(lambda: storage.batch_get([sha])): "1 hashes for 0 pages",
        refused(lambda: storage.register_mem_host_pool_v2(pool, PoolName.SWA)): "the host pool 'swa' is a MHATokenToKV",
        refused(
            lambda: storage_of(pool_of(layout="page_head"))
        ): "layout page_head; choose --hicache-mem-layout layer_f",
        refused(lambda: storage_of(pool_of(page=8))): "--page-size 8: each page is an object of the server; choose 16",
        refused(lambda: storage_of(SimpleNamespace())): "the host pool is a SimpleNamespace",
        refused(lambda: storage_of(pool, extra={"interface": 1})): "did you mean 'interface_v1'",
        refused(
            lambda: storage_of(pool, extra={"timeout": 1})
        ): "extra_config has 'timeout', which is unknown; did you m",
        refused(lambda: storage_of(pool, extra={"url": "tcp://h:1"})): "extra_config has url beside host or port",
    }
    wrong = {error: text for error, text in said.items() if text not in error}
    assert not wrong, wrong
    assert storage.batch_get_v1([], torch.empty(0, dtype=torch.int64)) == []
    assert storage.batch_exists([]) == 0
    storage.clear()
    storage.close()
    storage.close()
    assert "has closed this storage" in refused(lambda: storage.batch_exists([sha]))


def check_weights_that_change_end_its_use() -> None:
    source = pool_of(seed=12)
    storage, hashes = storage_of(source), hashes_of(13, 2)
    assert all(storage.batch_set_v1(hashes, slots(1, 2)))
    Weights._changed()
    assert storage.batch_exists(hashes) == 0
    assert storage.batch_get_v1(hashes, slots(1, 2)) == [False] * 2
    assert storage.batch_set_v1(hashes_of(14, 2), slots(1, 2)) == [False] * 2
    storage.close()


def run_frozen(work: Callable[[], list[bool]]) -> None:
    """A server that freezes while a page is copied, and goes on when that has failed."""
    runs, frozen = hicache._runs, threading.Event()

    def freezing(*given: Any) -> Any:
        if not frozen.is_set():
            os.kill(PID, signal.SIGSTOP)
            frozen.set()
            time.sleep(0.5)
        yield from runs(*given)

    try:
        with patch.object(hicache, "_runs", freezing):
            assert work() == [False] * 4, "the server may have taken its memory back"
    finally:
        os.kill(PID, signal.SIGCONT)
    assert frozen.is_set()


def wait_for(work: Callable[[], bool]) -> None:
    until = time.monotonic() + SECONDS
    while not work():
        assert time.monotonic() < until
        time.sleep(0.1)


def check_a_server_that_freezes_loads_and_stores_nothing_and_is_used_again() -> None:
    source, target = pool_of(seed=9), pool_of()
    storing, loading = storage_of(source), storage_of(target)
    hashes, places = hashes_of(9, 4), slots(*range(4))
    run_frozen(lambda: storing.batch_set_v1(hashes, places))
    wait_for(lambda: storing.batch_set_v1(hashes, places) == [True] * 4)
    wait_for(lambda: loading.batch_exists(hashes) == 4)
    run_frozen(lambda: loading.batch_get_v1(hashes, places))
    wait_for(lambda: loading.batch_get_v1(hashes, places) == [True] * 4)
    assert all(torch.equal(page_of(source, each), page_of(target, each)) for each in range(4))
    wait_for(lambda: not status()["l1"]["held"])
    storing.close()
    loading.close()


def check_a_server_that_dies_half_way_has_loaded_nothing_and_stored_nothing() -> None:
    """The last one: there is no server behind it."""
    source, target = pool_of(seed=11), pool_of()
    storing, loading = storage_of(source), storage_of(target)
    hashes = hashes_of(11, 4)
    assert all(storing.batch_set_v1(hashes, slots(*range(4))))
    runs, killed = hicache._runs, threading.Event()

    def killing(*given: Any) -> Any:
        for number, each in enumerate(runs(*given)):
            if number and not killed.is_set():  # half of a page is there
                os.kill(PID, signal.SIGKILL)
                killed.set()
            yield each

    with patch.object(hicache, "_runs", killing):
        assert loading.batch_get_v1(hashes, slots(*range(4))) == [False] * 4
    assert killed.is_set()
    assert storing.batch_set_v1(hashes_of(12, 4), slots(*range(4))) == [False] * 4
    assert loading.batch_exists(hashes) == 0
    assert loading.batch_get(hashes, [page_of(target, 0)] * 4) == [None] * 4
    storing.close()
    loading.close()


if __name__ == "__main__":
    get_context()._server_args = SimpleNamespace(model_path="/nowhere/model", served_model_name="m")
    said = {}
    for name, check in [each for each in globals().items() if each[0].startswith("check_")]:
        try:
            check()
            said[name] = ""
        except Exception:  # noqa: BLE001 - the others are to run, too
            said[name] = traceback.format_exc()
    print(json.dumps(said))
