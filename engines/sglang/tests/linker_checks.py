"""What `NodeLinker` must do, on SGLang's own pools without an engine.  A program of SGLang's environment: prints what each
check said, as JSON.

Arguments: the server's port, its HTTP port, and its process id."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
import time
import traceback
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

import torch
from sglang.srt.mem_cache.device_pool_info import KVScaleBuffers, KVScaleLayout
from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.model_executor.model_runner_components.weight_updater import WeightUpdater
from sglang.srt.plugins.hook_registry import HookRegistry

from lmcache_sglang import NodeLinker, pools
from lmcache_sglang import linker as module
from lmcache_sglang.weights import UPDATES, Weights

PORT, HTTP_PORT, PID = map(int, sys.argv[1:4])
PAGE, PAGES, HEADS, SIZE, LAYERS = 16, 32, 2, 8, 3
FULL, SWA = ComponentType.FULL, ComponentType.SWA
SECONDS: Final = 60.0
WINDOWED, WHOLE = (0, 2, 3), (1,)
"""Layers of a model with windows."""


def mha(page: int = PAGE, layers: int = LAYERS) -> Any:
    pool = MHATokenToKVPool((PAGES - 1) * page, page, torch.float32, HEADS, SIZE, layers, "cpu", False)
    for each in (*pool.k_buffer, *pool.v_buffer):
        each.normal_()
    return pool


def mla() -> Any:
    pool = MLATokenToKVPool((PAGES - 1) * PAGE, PAGE, torch.float32, SIZE, SIZE, LAYERS, "cpu", False)
    for each in pool.kv_buffer:
        each.normal_()
    return pool


def swa() -> Any:
    tokens = (PAGES - 1) * PAGE
    pool = SWAKVPool(
        tokens, tokens, PAGE, torch.float32, HEADS, SIZE, swa_attention_layer_ids=list(WINDOWED),
        full_attention_layer_ids=list(WHOLE), device="cpu",
    )  # fmt: skip
    for each in (pool.full_kv_pool, pool.swa_kv_pool):
        for tensor in (*each.k_buffer, *each.v_buffer):
            tensor.normal_()
    return pool


SERVER_ARGS = SimpleNamespace(model_path="/nowhere/model", served_model_name="m", dcp_size=1)


def linker_of(
    pool: Any,
    model: str = "m",
    *,
    page: int = PAGE,
    components: set[Any] | None = None,
    server_args: Any = SERVER_ARGS,
    rank: tuple[int, int] = (0, 1),
    **more: Any,
) -> NodeLinker:
    params = SimpleNamespace(
        token_to_kv_pool_allocator=SimpleNamespace(get_kvcache=lambda: pool), page_size=page, attn_tp_cache_group=None,
        tp_cache_group=None, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1, mtp_draft_device_pools=(),
        sidecar_draft_device_pools=(),
    )  # fmt: skip
    vars(params).update(more)
    server_args = SimpleNamespace(**{**vars(server_args), "served_model_name": model})
    with patch.object(pools, "rank", lambda params: rank):
        return NodeLinker(
            server_args,
            params,
            components=components or ({FULL, SWA} if isinstance(pool, SWAKVPool) else {FULL}),
            extra_config={"port": PORT, "lookup_timeout_ms": 5000, "timeout_seconds": 2},
        )


def hashes_of(seed: object, count: int) -> list[str]:
    return [hashlib.sha256(f"{seed} {number}".encode()).hexdigest() for number in range(count)]


def of(name: PoolName, keys: Sequence[str], pages: Sequence[int] = (), page: int = PAGE) -> PoolTransfer:
    slots = [torch.arange(number * page, (number + 1) * page) for number in pages]
    return PoolTransfer(name, device_indices=torch.cat(slots) if slots else None, keys=list(keys))


def kv(keys: Sequence[str], *pages: int) -> list[PoolTransfer]:
    return [of(PoolName.KV, keys, pages)]


def wait_for(work: Callable[[], object]) -> None:
    until = time.monotonic() + SECONDS
    while not work():
        assert time.monotonic() < until
        time.sleep(0.01)


def stored(linker: NodeLinker, transfers: list[PoolTransfer]) -> bool:
    assert linker.offload(transfers)
    wait_for(linker.num_completed_offloads)
    return bool(linker.pop_completed_offload())


def landed(linker: NodeLinker) -> bool:
    return bool(linker.finish_layer_wise_loading(linker.start_layer_wise_loading()))


def rows(*pages: int) -> torch.Tensor:
    return torch.cat([torch.arange(page * PAGE, (page + 1) * PAGE) for page in pages])


def alike(tensors: Sequence[torch.Tensor], some: Sequence[int], others: Sequence[int]) -> bool:
    return all(torch.equal(each[rows(*some)], each[rows(*others)]) for each in tensors)


def refused(work: Callable[[], object]) -> str:
    try:
        work()
    except Exception as error:  # noqa: BLE001 - its text is looked at
        return str(error)
    return "nothing was raised"


@contextmanager
def noted(of: Any, name: str, calls: list[Any]) -> Iterator[None]:
    """Calls of a method, with the object in front."""
    method = getattr(of, name)

    def noting(*given: Any) -> Any:
        calls.append((of, *given))
        return method(*given)

    with patch.object(of, name, noting):
        yield


def check_pages_go_and_come_layer_by_layer() -> None:
    pool = mha()
    linker, hashes = linker_of(pool), hashes_of("go", 4)
    asked: list[Any] = []
    link = linker._pools[PoolName.KV].link
    assert linker.lookup("r", kv(hashes)) == []
    with noted(link, "lookup", asked):
        assert [linker.lookup("r", kv(hashes)) for _ in range(9)] == [[]] * 9, "asked for in each step"
        assert not asked
        assert stored(linker, kv(hashes, 1, 2, 3, 4))
        assert stored(linker, kv(hashes, 1, 2, 3, 4)), "again"
        asked.clear()
        with patch.object(module, "MISS_SECONDS", 0.0):
            assert [linker.lookup("r", kv(hashes)) for _ in range(2)] == [[1, 2, 3, 4]] * 2
        assert len(asked) == 1
    assert linker.load("r", kv(hashes, 10, 11, 12, 13))
    assert landed(linker)
    assert alike([*pool.k_buffer, *pool.v_buffer], (1, 2, 3, 4), (10, 11, 12, 13))
    assert linker.start_layer_wise_loading() == -1, "nothing is queued"
    linker.close()


def check_a_second_load_of_a_request_is_refused() -> None:
    """It might write to slots that the first was given and the engine has freed."""
    linker, hashes = linker_of(mha()), hashes_of("twice", 4)
    assert stored(linker, kv(hashes, 1, 2, 3, 4))
    linker.lookup("twice", kv(hashes))
    linker.load("twice", kv(hashes, 10, 11, 12, 13))
    assert (
        refused(lambda: linker.load("twice", kv(hashes, 14, 15, 16, 17))) == "request twice already has a queued load"
    )
    assert linker.cancel_queued_load("twice")
    assert linker.start_layer_wise_loading() == -1
    linker.close()


@contextmanager
def gated(copies: Any, name: str, gate: int | None = None) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Copies (of a layer) wait for the second event behind their end, and set the first one."""
    copy, reached, go = getattr(copies, name), threading.Event(), threading.Event()

    def waiting(*given: Any) -> None:
        copy(*given)
        if gate is None or given[0] == gate:
            reached.set()
            go.wait(SECONDS)

    with patch.object(copies, name, waiting):
        yield reached, go


def check_a_load_that_a_reset_overtakes_completes_no_layer_of_a_later_one() -> None:
    """The reset gives its number to the later one."""
    linker, hashes = linker_of(mha()), hashes_of("overtaken", 4)
    assert stored(linker, kv(hashes, 1, 2, 3, 4))
    copies = linker._pools[PoolName.KV].copies

    def start(rid: str) -> int:
        linker.lookup(rid, kv(hashes))
        linker.load(rid, kv(hashes, 20, 21, 22, 23))
        return int(linker.start_layer_wise_loading())

    with gated(copies, "scatter", 2) as (reached, release):
        old = start("old")
        assert reached.wait(SECONDS)
        with patch.object(module, "QUIET_SECONDS", 0.2):
            linker.reset()
        copies.__dict__.pop("scatter")
        with gated(copies, "scatter", 0) as (reached_too, go):
            new = start("new")
            layers = linker.layer_done_counter.futures[new]
            release.set()
            assert reached_too.wait(SECONDS)
            assert (old, new) == (0, 0)
            assert not any(each.done() for each in layers)
            go.set()
            assert linker.finish_layer_wise_loading(new)
        copies.__dict__["scatter"] = None  # what the outer patch takes away
    assert linker.failed_loads == 0
    linker.close()


def check_a_server_that_stops_within_a_load_fails_it_and_holds_nothing_later() -> None:
    linker, hashes = linker_of(mha()), hashes_of("frozen", 4)
    assert stored(linker, kv(hashes, 1, 2, 3, 4))
    linker.lookup("frozen", kv(hashes))
    linker.load("frozen", kv(hashes, 24, 25, 26, 27))
    os.kill(PID, signal.SIGSTOP)
    time.sleep(0.5)
    assert not landed(linker)
    assert linker.failed_loads == 1
    os.kill(PID, signal.SIGCONT)
    wait_for(linker._pools[PoolName.KV].link.is_ready)
    assert linker.lookup("after", kv(hashes)) == [1, 2, 3, 4]
    linker.close()


def check_a_copy_that_a_reset_overtakes_is_not_published() -> None:
    """The engine uses the pages for something else by then."""
    pool = mha()
    linker, hashes = linker_of(pool), hashes_of("reset", 4)
    with gated(linker._pools[PoolName.KV].copies, "gather") as (reached, go):
        assert linker.offload(kv(hashes, 1, 2, 3, 4))
        assert reached.wait(SECONDS)
        with patch.object(module, "QUIET_SECONDS", 0.2):
            linker.reset()
        go.set()
        wait_for(lambda: not linker._under_way)
    assert linker.lookup("later", kv(hashes)) == []
    assert not linker.num_completed_offloads()
    linker.close()


def check_an_offload_without_a_server_is_a_result_and_no_refusal() -> None:
    """SGLang matches the results of ranks by their order: one rank that refuses, and has none, would shift all later ones."""
    linker, hashes = linker_of(mha()), hashes_of("away", 2)
    with patch.object(linker._pools[PoolName.KV].link, "is_ready", lambda: False):
        assert stored(linker, kv(hashes, 1, 2)) is False
    assert stored(linker, kv(hashes, 1, 2))
    linker.close()


def check_engines_of_one_model_with_other_pages_are_apart() -> None:
    linker, hashes = linker_of(mha(), "pages"), hashes_of("narrow", 4)
    assert stored(linker, kv(hashes, 1, 2, 3, 4))
    wide, pair = linker_of(mha(32), "pages", page=32), [of(PoolName.KV, hashes_of("wide", 2), (0, 1), 32)]
    assert stored(wide, pair)
    assert wide.lookup("wide", pair) == [1, 2]
    assert linker.lookup("narrow", kv(hashes)) == [1, 2, 3, 4]
    wide.close()
    linker.close()


def check_mla_is_stored_by_one_rank_and_found_by_all() -> None:
    pool, other = mla(), mla()
    first, second = linker_of(pool, "mla", rank=(0, 2)), linker_of(other, "mla", rank=(1, 2))
    hashes = hashes_of("mla", 3)
    assert second.offload(kv(hashes, 1, 2, 3))
    assert second.pop_completed_offload(), "the first rank's result decides"
    assert second.lookup("before", kv(hashes)) == []
    assert stored(first, kv(hashes, 4, 5, 6))
    assert second.lookup("r", kv(hashes)) == [1, 2, 3]
    second.load("r", kv(hashes, 10, 11, 12))
    assert landed(second)
    for mine, theirs in zip(pool.kv_buffer, other.kv_buffer, strict=True):
        assert torch.equal(mine[rows(4, 5, 6)], theirs[rows(10, 11, 12)])
    first.close()
    second.close()


def check_windows_have_pages_of_their_own_and_the_layers_of_the_model() -> None:
    pool = swa()
    linker, hashes = linker_of(pool, "windows"), hashes_of("windows", 6)
    waited: list[Any] = []
    assert linker.layer_done_counter.num_layers == 4
    assert stored(linker, [of(PoolName.KV, hashes, range(1, 7)), of(PoolName.SWA, hashes[2:], range(11, 15))])
    lookup = [of(PoolName.KV, hashes), of(PoolName.SWA, hashes[4:])]
    assert linker.lookup("r", lookup) == [6]
    linker.load("r", [of(PoolName.KV, hashes, range(20, 26)), of(PoolName.SWA, hashes[4:], (1, 2))])
    copies = {name: each.copies for name, each in linker._pools.items()}
    with noted(copies[PoolName.KV], "scatter", waited), noted(copies[PoolName.SWA], "scatter", waited):
        assert landed(linker)
    assert [(each is copies[PoolName.SWA], layer) for each, layer, *_ in waited] == [
        (True, 0),
        (False, 0),
        (True, 1),
        (True, 2),
    ]
    full, windows = pool.full_kv_pool, pool.swa_kv_pool
    assert alike([*full.k_buffer, *full.v_buffer], range(1, 7), range(20, 26))
    assert alike([*windows.k_buffer, *windows.v_buffer], (13, 14), (1, 2))
    linker.close()


def check_a_prefix_is_found_where_its_window_is_whole() -> None:
    linker = linker_of(swa(), "holes")

    def found(rid: str, seed: str, windows: Sequence[int], window: int, pages: int = 12) -> list[int]:
        """Of a prompt of which the server has all pages, and these of windows."""
        hashes = hashes_of(seed, pages)
        assert stored(linker, kv(hashes, *range(pages)))
        if windows:
            keys = [hashes[each] for each in windows]
            assert stored(linker, [*kv(hashes, *range(pages)), of(PoolName.SWA, keys, windows)])
        return list(linker.lookup(rid, [of(PoolName.KV, hashes), of(PoolName.SWA, hashes[-window:])]))

    assert found("none", "a", (), 2) == []
    assert found("end", "b", (10, 11), 2) == [12]
    assert found("middle", "c", (4, 5, 6, 9, 11), 3) == [7]
    assert found("all", "d", range(12), 12) == list(range(1, 13)), "a window that is longer than the prompt"
    assert found("begin", "e", (0, 1, 2, 8), 4) == [1, 2, 3], "a prompt that is shorter than its window needs all of it"
    assert found("gaps", "f", (0, 1, 3, 5, 7, 9, 11), 2) == [1, 2]
    with patch.object(module, "WINDOWS_TRIED", 3):
        assert found("further", "g", (0, 1, 3, 5, 7, 9, 11), 2) == []
    linker.reset()
    wait_for(lambda: not held())
    linker.close()


def held() -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{HTTP_PORT}/status", timeout=SECONDS) as answer:
        return int(json.load(answer)["l1"]["held"])


def check_whatever_changes_weights_ends_the_use_of_the_cache() -> None:
    for name in sorted(UPDATES):
        linker, hashes = linker_of(mha(), name), hashes_of(name, 2)
        assert stored(linker, kv(hashes, 1, 2)), name
        assert linker.lookup("before", kv(hashes)) == [1, 2], name
        with suppress(Exception):
            getattr(WeightUpdater, name)(None)  # what plugins register is called first
        assert linker.load("before", kv(hashes, 3, 4)) is False, name
        assert linker.lookup("after", kv(hashes)) == [], name
        assert linker.offload(kv(hashes_of(name, 9), *range(9))) is False, name
        linker.close()


def check_hooks_that_do_not_reach_an_update_are_refused() -> None:
    with (
        patch.object(Weights, "_is_watched", False),
        patch.object(HookRegistry, "apply_hooks", lambda: None),
        patch.object(WeightUpdater, "update_weights_from_disk", lambda updater, path: None),
    ):
        assert "plugin hooks do not reach update_weights_from_disk: pages of old" in refused(lambda: linker_of(mha()))


def check_what_cannot_be_meant_is_refused() -> None:
    linker, (sha, *_) = linker_of(mha()), hashes_of("bad", 2)
    half, scaled, strided, empty = mha(), mha(), mha(), SimpleNamespace()
    scaled.k_scale_buffer = scaled.v_scale_buffer = [torch.zeros(1)] * LAYERS
    assert isinstance(scaled._mha_scale_buffers(), KVScaleBuffers)
    assert scaled._mha_scale_buffers().layout is KVScaleLayout.TOKEN
    strided.k_buffer = [each.transpose(0, 1).contiguous().transpose(0, 1) for each in strided.k_buffer]
    said = {
        refused(lambda: linker.load("bad", [PoolTransfer(PoolName.KV, device_indices=torch.arange(8), keys=[sha])])):
            "8 slots do not fill whole pages of 16",
        refused(lambda: linker.load("bad", kv(["00" * 16], 1))): "a SHA-256 has 32",
        refused(lambda: linker.load("bad", kv([sha], 1, 2))): "1 hashes for 2 pages",
        refused(lambda: linker.load("bad", [of(PoolName.SWA, [sha], (1,))])): "the pool swa: this model has kv",
        refused(lambda: linker_of(half, components={FULL, SWA})): "the KV pool is a MHATokenToKVPool, of a model with caches F",
        refused(lambda: linker_of(swa(), components={FULL})): "the KV pool is a SWAKVPool, of a model with caches FULL",
        refused(lambda: linker_of(half, components={FULL, ComponentType.MAMBA})): "a model with caches FULL, MAMBA: lmcache",
        refused(lambda: linker_of(empty)): "the KV pool is a SimpleNamespace with scales, in another order, or of a type",
        refused(lambda: linker_of(scaled)): "the KV pool is a MHATokenToKVPool with scales",
        refused(lambda: linker_of(strided)): "contiguous [slots, heads, dimension] is understood",
        refused(lambda: linker_of(half, sidecar_draft_device_pools=(half,))): "the draft model has KV of its own",
        refused(lambda: linker_of(half, server_args=SimpleNamespace(**{**vars(SERVER_ARGS), "dcp_size": 2}))):
            "--dcp-size 2: ranks divide pages",
        refused(lambda: linker_of(mha(8), page=8)): "--page-size 8: each page is an object of the server; choose 16 or more",
    }  # fmt: skip
    wrong = {error: text for error, text in said.items() if text not in error}
    assert not wrong, wrong
    assert not linker._queued
    linker.close()


if __name__ == "__main__":
    said = {}
    for name, check in [each for each in globals().items() if each[0].startswith("check_")]:
        try:
            check()
            said[name] = ""
        except Exception:  # noqa: BLE001 - the others are to run, too
            said[name] = traceback.format_exc()
    print(json.dumps(said))
