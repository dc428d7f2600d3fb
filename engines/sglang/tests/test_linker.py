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
import hashlib, json, os, signal, sys, threading, time
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
    server_args, params, components={ComponentType.FULL},
    extra_config={"port": int(sys.argv[1]), "lookup_timeout_ms": 5000, "timeout_seconds": 2})
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
asked = []
look = linker._link.lookup
linker._link.lookup = lambda *given: asked.append(given) or look(*given)
said["asked in each step"] = [linker.lookup("r", transfer()) for _ in range(9)], len(asked)
assert linker.offload(transfer(1, 2, 3, 4))
said["stored"] = stored()
assert linker.offload(transfer(1, 2, 3, 4))
said["again"] = stored()
module.MISS_SECONDS = 0.0
asked.clear()
said["found"] = linker.lookup("r", transfer()), linker.lookup("r", transfer()), len(asked)
said["loads"] = linker.load("r", transfer(10, 11, 12, 13))
index = linker.start_layer_wise_loading()
said["landed"] = linker.finish_layer_wise_loading(index)
rows = lambda first: slice(first * 16, (first + 4) * 16)
said["same"] = all(torch.equal(each[rows(1)], each[rows(10)]) for each in pool.k_buffer + pool.v_buffer)
said["idle"] = linker.start_layer_wise_loading()

# A second load of a request might write to slots that the first was given and the engine has freed.
linker.lookup("twice", transfer())
linker.load("twice", transfer(10, 11, 12, 13))
try:
    linker.load("twice", transfer(14, 15, 16, 17))
except ValueError as error:
    said["twice"] = str(error)
said["cancelled"] = linker.cancel_queued_load("twice"), linker.start_layer_wise_loading()

# A load that a reset overtakes must not complete layers of a later one, to which the reset gives its number.
linker.reset()
module.QUIET_SECONDS = 0.2
scatter, gates = linker._copies.scatter, {}


def gated(layer, *given):
    scatter(layer, *given)
    if layer in gates:
        reached, go = gates[layer]
        reached.set()
        go.wait(60)


def load(rid, gate):
    gates.clear()
    gates[gate] = reached, go = threading.Event(), threading.Event()
    linker.lookup(rid, transfer())
    linker.load(rid, transfer(20, 21, 22, 23))
    return linker.start_layer_wise_loading(), reached, go


linker._copies.scatter = gated
old, reached, release = load("old", 2)
reached.wait(60)
linker.reset()
new, reached, go = load("new", 0)
layers = linker.layer_done_counter.futures[new]
release.set()
reached.wait(60)
said["numbers"], said["early"] = [old, new], [each.done() for each in layers]
go.set()
said["new"], said["failed"] = linker.finish_layer_wise_loading(new), linker.failed_loads
linker._copies.scatter = scatter

# A server that stops between lookup and load fails the load, and holds nothing for it when it goes on.
linker.lookup("frozen", transfer())
linker.load("frozen", transfer(24, 25, 26, 27))
os.kill(int(sys.argv[2]), signal.SIGSTOP)
time.sleep(0.5)
said["frozen"] = linker.finish_layer_wise_loading(linker.start_layer_wise_loading()), linker.failed_loads
os.kill(int(sys.argv[2]), signal.SIGCONT)
until = time.monotonic() + 60
while not linker._link.is_ready() and time.monotonic() < until:
    time.sleep(0.01)
said["after"] = linker.lookup("after", transfer())

# A copy that a reset overtakes must not be published: the engine uses the pages for something else by then.
started, go = threading.Event(), threading.Event()
gather = linker._copies.gather
linker._copies.gather = lambda *given: (started.set(), go.wait(60), gather(*given))
module.QUIET_SECONDS = 0.2
others = [hashlib.sha256(each.encode()).hexdigest() for each in hashes]
assert linker.offload(transfer(1, 2, 3, 4, keys=others))
started.wait(60)
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

# An engine of the same model with other pages stores and finds its own beside these.
wide = NodeLinker(
    server_args, SimpleNamespace(**{**vars(params), "page_size": 32}), components={ComponentType.FULL},
    extra_config={"port": int(sys.argv[1]), "lookup_timeout_ms": 5000})
pair = [SimpleNamespace(name=PoolName.KV, keys=["ab" * 32, "cd" * 32], device_indices=torch.arange(64))]
assert wide.offload(pair)
until = time.monotonic() + 60
while not wide.num_completed_offloads() and time.monotonic() < until:
    time.sleep(0.01)
said["pages of 32"] = wide.pop_completed_offload(), wide.lookup("wide", pair), linker.lookup("narrow", transfer())
wide.close()
try:
    NodeLinker(server_args, params, components={ComponentType.FULL, ComponentType.SWA})
except Exception as error:
    said["windows"] = str(error)
linker.close()
print(json.dumps(said))
"""


@pytest.mark.sglang
@pytest.mark.skipif(not SGLANG_PYTHON.exists(), reason="no SGLang here: run `make setup-sglang`")
def test_pages_go_and_come_and_what_fails_on_the_way_is_not_used(tmp_path: Path) -> None:
    with ServerProcess(["--l1-size-gb", "0.1"], tmp_path / "server.log") as server:
        ran = subprocess.run(
            [str(SGLANG_PYTHON), "-c", PROGRAM, str(server.port), str(server.pid)],
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
    assert said["asked in each step"] == [[[]] * 9, 0]
    assert said["found"] == [[1, 2, 3, 4], [1, 2, 3, 4], 1]
    assert said["loads"]
    assert said["landed"]
    assert said["same"]
    assert said["idle"] == -1
    assert said["twice"] == "request twice already has a queued load"
    assert said["cancelled"] == [True, -1]
    assert said["numbers"] == [0, 0]
    assert said["early"] == [False, False, False]
    assert said["new"]
    assert said["failed"] == 0
    assert said["frozen"] == [False, 1]
    assert "a load failed requests=['frozen']" in ran.stderr
    assert "failed_loads=1" in ran.stderr
    assert said["after"] == [1, 2, 3, 4]
    assert said["overtaken"] == [[], 0]
    assert said["half a page"] == "8 slots do not fill whole pages of 16"
    assert "a SHA-256 has 32" in said["hash"]
    assert "only that of KV is known" in said["pool"]
    assert said["pages of 32"] == [True, [1, 2], [1, 2, 3, 4]]
    assert "FULL, SWA" in said["windows"]
    assert "--enable-lmcache" in said["windows"]
