"""The linker without an engine, in SGLang's environment: what the others of this folder cannot import."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from demo.server_process import ServerProcess
from demo.sglang_process import SGLANG_PYTHON, sglang_environment

PROGRAM = """
import hashlib, json, sys, threading, time
from types import SimpleNamespace
import torch
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from lmcache_sglang import NodeLinker
from lmcache_sglang import linker as module

pool = object.__new__(MHATokenToKVPool)
pool.k_buffer = [torch.randn(32 * 16, 2, 8) for _ in range(3)]
pool.v_buffer = [torch.randn(32 * 16, 2, 8) for _ in range(3)]
pool.kv_cache_layout = "nhd"
params = SimpleNamespace(
    token_to_kv_pool_allocator=SimpleNamespace(get_kvcache=lambda: pool), page_size=16, attn_tp_cache_group=None,
    tp_cache_group=None, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1)
server_args = SimpleNamespace(model_path="/nowhere/model", served_model_name="m")
linker = NodeLinker(
    server_args, params, components={ComponentType.FULL}, extra_config={"port": int(sys.argv[1]), "lookup_timeout_ms": 5000})
hashes = [hashlib.sha256(bytes([number])).hexdigest() for number in range(4)]


def transfer(*pages, keys=hashes):
    slots = torch.cat([torch.arange(page * 16, page * 16 + 16) for page in pages]) if pages else None
    return [SimpleNamespace(name=PoolName.KV, keys=list(keys), device_indices=slots)]


def stored():
    until = time.monotonic() + 60
    while not linker.num_completed_offloads() and time.monotonic() < until:
        time.sleep(0.01)
    return linker.pop_completed_offload()


said = {"cold": linker.lookup("r", transfer())}
assert linker.offload(transfer(1, 2, 3, 4))
said["stored"] = stored()
assert linker.offload(transfer(1, 2, 3, 4))
said["again"] = stored()
said["found"] = linker.lookup("r", transfer())
said["loads"] = linker.load("r", transfer(10, 11, 12, 13))
index = linker.start_layer_wise_loading()
said["landed"] = linker.finish_layer_wise_loading(index)
rows = lambda first: slice(first * 16, (first + 4) * 16)
said["same"] = all(torch.equal(each[rows(1)], each[rows(10)]) for each in pool.k_buffer + pool.v_buffer)
said["idle"] = linker.start_layer_wise_loading()

# A copy that a reset overtakes must not be published: the engine uses the pages for something else by then.
begun, go = threading.Event(), threading.Event()
gather = linker._copies.gather
linker._copies.gather = lambda *given: (begun.set(), go.wait(60), gather(*given))
module.QUIET_SECONDS = 0.2
others = [hashlib.sha256(each.encode()).hexdigest() for each in hashes]
assert linker.offload(transfer(1, 2, 3, 4, keys=others))
begun.wait(60)
linker.reset()
for each in pool.k_buffer:
    each.zero_()
go.set()
time.sleep(1)
said["overtaken"] = linker.lookup("later", transfer(keys=others)), linker.num_completed_offloads()
for name, given in {
    "half a page": [SimpleNamespace(name=PoolName.KV, keys=hashes[:1], device_indices=torch.arange(8))],
    "hash": [SimpleNamespace(name=PoolName.KV, keys=["00" * 16], device_indices=torch.arange(16))],
    "pool": [SimpleNamespace(name=PoolName.SWA, keys=hashes[:1], device_indices=torch.arange(16))],
}.items():
    try:
        linker.load("bad", given)
    except ValueError as error:
        said[name] = str(error)
try:
    NodeLinker(server_args, params, components={ComponentType.FULL, ComponentType.SWA})
except Exception as error:
    said["windows"] = str(error)
linker.close()
print(json.dumps(said))
"""


@pytest.mark.sglang
@pytest.mark.skipif(not SGLANG_PYTHON.exists(), reason="no SGLang here: run `make setup-sglang`")
def test_pages_go_and_come_and_what_a_reset_overtakes_is_not_stored(tmp_path: Path) -> None:
    with ServerProcess(["--l1-size-gb", "0.1"], tmp_path / "server.log") as server:
        ran = subprocess.run(
            [str(SGLANG_PYTHON), "-c", PROGRAM, str(server.port)],
            env=sglang_environment() | {"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            timeout=280,
        )
    assert ran.returncode == 0, ran.stderr[-3000:]
    said = json.loads(ran.stdout.splitlines()[-1])
    assert said["cold"] == []
    assert said["stored"]
    assert said["again"]
    assert said["found"] == [1, 2, 3, 4]
    assert said["loads"]
    assert said["landed"]
    assert said["same"]
    assert said["idle"] == -1
    assert said["overtaken"] == [[], 0]
    assert said["half a page"] == "8 slots do not fill whole pages of 16"
    assert "a SHA-256 has 32" in said["hash"]
    assert "only that of KV is known" in said["pool"]
    assert "FULL, SWA" in said["windows"]
    assert "--enable-lmcache" in said["windows"]
