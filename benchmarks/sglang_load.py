"""Loads of lmcache-sglang without an engine: when layers are complete, and what memory the linker takes.

A part of `benchmarks.sglang_linker`, in SGLang's environment: `python -m benchmarks.sglang_load PORT TOKENS ROUNDS` prints one
line of JSON.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import torch
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

from lmcache_sglang import NodeLinker

PAGE: Final = 64
LAYERS: Final = 16
SAMPLE_SECONDS: Final = 0.005
STORE_SECONDS: Final = 120.0


def own_bytes() -> int:
    """Of this process alone: L1, which it has mapped, belongs to all."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10


class Peak:
    """The most that `own_bytes` was since `begin`."""

    def __init__(self) -> None:
        self.begin = self.most = own_bytes()
        threading.Thread(target=self._sample, daemon=True).start()

    def _sample(self) -> None:
        while True:
            self.most = max(self.most, own_bytes())
            time.sleep(SAMPLE_SECONDS)


def a_pool(slots: int) -> Any:
    """64 KiB for each token, all of it touched."""
    pool = object.__new__(MHATokenToKVPool)
    pool.k_buffer, pool.v_buffer = (
        [torch.full((slots, 4, 128), float(layer + side)) for layer in range(LAYERS)] for side in range(2)
    )
    pool.kv_cache_layout = "nhd"
    return pool


def a_linker(pool: Any, port: int) -> NodeLinker:
    params = SimpleNamespace(
        token_to_kv_pool_allocator=SimpleNamespace(get_kvcache=lambda: pool),
        page_size=PAGE,
        attn_tp_cache_group=None,
        tp_cache_group=None,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
    )
    arguments = SimpleNamespace(model_path="/nowhere/model", served_model_name="benchmark")
    return NodeLinker(
        arguments, params, components={ComponentType.FULL}, extra_config={"port": port, "lookup_timeout_ms": 20_000}
    )


def main() -> None:
    port, tokens, rounds = map(int, sys.argv[1:])
    torch.set_num_threads(1)
    pages = tokens // PAGE
    pool = a_pool(2 * pages * PAGE)
    hashes = [hashlib.sha256(number.to_bytes(4)).hexdigest() for number in range(pages)]

    def transfer(first_page: int) -> list[Any]:
        slots = torch.arange(first_page * PAGE, (first_page + pages) * PAGE)
        return [SimpleNamespace(name=PoolName.KV, keys=hashes, device_indices=slots)]

    peak = Peak()
    linker = a_linker(pool, port)
    begin = time.perf_counter()
    assert linker.offload(transfer(0)), "no server took it"
    while not linker.num_completed_offloads() and time.perf_counter() < begin + STORE_SECONDS:
        time.sleep(0.001)
    stored = time.perf_counter() - begin
    assert linker.pop_completed_offload()
    first, whole = [], []
    for number in range(rounds):
        assert len(linker.lookup(f"r{number}", transfer(pages))) == pages
        linker.load(f"r{number}", transfer(pages))
        begin = time.perf_counter()
        index = linker.start_layer_wise_loading()
        linker.layer_done_counter.futures[index][0].exception()
        first.append(time.perf_counter() - begin)
        assert linker.finish_layer_wise_loading(index)
        whole.append(time.perf_counter() - begin)
    linker.close()
    print(json.dumps({"store_s": stored, "first_s": first, "whole_s": whole, "beyond_bytes": peak.most - peak.begin}))


if __name__ == "__main__":
    main()
