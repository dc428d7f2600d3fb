"""vLLM's own attention layers without an engine, and every way that their blocks travel.

Runs in the engine environment; `test_block_layers.py` is the other end. For each kind of layer, each way and block size writes
a prompt under a cache salt of its own and leaves; then each way and block size looks up all of them, loads what is hit, and
compares its blocks with those that its own layers write for the prompt. Prints a JSON list of what was hit, right or wrong:

    {"writer": ["own", 64], "reader": ["engine_driven", 32], "hits": 4, "right": true}
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
import zmq
from lmcache.integration.vllm.vllm_multi_process_adapter import LMCacheMPWorkerAdapter, LoadStoreOp, ParallelStrategy
from lmcache.v1.multiprocess.group_view import EngineGroupInfo
from vllm.config import CacheConfig, ModelConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.attention.attention import set_default_quant_scales
from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadataBuilder
from vllm.v1.attention.backends.mla.cpu_mla import CPUMLAImpl

from demo.engine_process import MODEL
from engines.vllm.tests.worker_kit import Paged, Rig, transfer
from lmcache_devkit.fake_engine import FakeEngine
from lmcache_vllm.element_order import with_order
from lmcache_vllm.placement import CacheGroup, Placement
from lmcache_vllm.settings import Settings
from lmcache_vllm.worker import WorkerSide

CHUNK_TOKENS = 128
TOKENS = list(range(700, 700 + 4 * CHUNK_TOKENS))
LAYERS = 2
SIZES = (16, 32, 64, 128)
WAYS = ("own", "sharing", "engine_driven", "lmcache_driven")
"""Our connector, the same with `lmcache.share_with_stock`, and the two ways of the stock one."""
LATENT, ROPE = 64, 32


class Kind(NamedTuple):
    heads: int = 2
    head_size: int = 64
    dtype: str = "float32"
    cache_dtype: str = "auto"
    packed: bool = False
    """As on a machine with AMX; its packing is done without it, too."""
    latent: bool = False

    @property
    def sizes(self) -> tuple[int, ...]:
        """Those that the kernel takes."""
        return tuple(size for size in SIZES if size >= 32 or not (self.packed or self.cache_dtype != "auto"))


KINDS = {
    "gqa": Kind(),
    "mha-bfloat16": Kind(heads=4, dtype="bfloat16"),
    "one-head": Kind(heads=1),
    "head-80": Kind(head_size=80, dtype="float16"),
    "fp8": Kind(dtype="bfloat16", cache_dtype="fp8_e4m3"),
    "amx": Kind(dtype="bfloat16", packed=True),
    "mla": Kind(dtype="bfloat16", latent=True),
}


class Latent:
    """As much of vLLM's layer of latent attention as stores KV."""

    def __init__(self) -> None:
        self.kv_lora_rank, self.qk_rope_head_dim = LATENT, ROPE
        self.kv_cache_dtype, self._k_scale = "auto", torch.tensor(1.0)
        self.impl = object.__new__(CPUMLAImpl)


class Worker:
    """Layers, their cache, and blocks of it in an order of their own."""

    def __init__(self, kind: Kind, block_size: int) -> None:
        self.kind, self.block_size = kind, block_size
        self.names = tuple(f"model.layers.{index}.self_attn.attn" for index in range(LAYERS))
        self.dtype = getattr(torch, kind.dtype)
        self.layers: dict[str, Any] = self._latent() if kind.latent else self._attention()
        count = len(TOKENS) // block_size
        self.blocks = [1 + (index * 7 + 3) % 2**20 % count for index in range(count)]
        assert sorted(self.blocks) == list(range(1, count + 1))
        heads, width = (1, LATENT + ROPE) if kind.latent else (kind.heads, 2 * kind.head_size)
        cache_dtype = torch.uint8 if kind.cache_dtype != "auto" else self.dtype
        self.caches = {name: torch.zeros(count + 3, heads, block_size, width, dtype=cache_dtype) for name in self.names}
        for name, layer in self.layers.items():
            layer.kv_cache = self.caches[name].squeeze(1) if kind.latent else self.caches[name]

    def _latent(self) -> dict[str, Any]:
        return {name: Latent() for name in self.names}

    def _attention(self) -> dict[str, Any]:
        kind = self.kind
        model = ModelConfig(model=str(MODEL), skip_tokenizer_init=True, dtype=kind.dtype)
        config = VllmConfig(
            model_config=model, cache_config=CacheConfig(block_size=self.block_size, cache_dtype=kind.cache_dtype)
        )
        with set_current_vllm_config(config):
            layers = {
                name: Attention(
                    8, kind.head_size, 0.125, num_kv_heads=kind.heads, cache_config=config.cache_config, prefix=name
                )
                for name in self.names
            }
        for layer in layers.values():
            set_default_quant_scales(layer, register_buffer=False)
        spec = next(iter(layers.values())).get_kv_cache_spec(config)
        CPUAttentionMetadataBuilder(spec, list(self.names), config, torch.device("cpu"))
        for layer in layers.values():
            layer.isa = "amx" if kind.packed else layer.isa
        return layers

    def compute(self) -> None:
        """Have every layer store the prompt's KV in the blocks."""
        slots = torch.cat([torch.arange(self.block_size) + block * self.block_size for block in self.blocks])
        for number, (name, layer) in enumerate(self.layers.items()):
            generator = torch.Generator().manual_seed(number)
            cache = self.caches[name]

            def kv(*shape: int, generator: torch.Generator = generator) -> torch.Tensor:
                return torch.randn(len(TOKENS), *shape, generator=generator).to(self.dtype)

            if self.kind.latent:
                cache = layer.kv_cache  # a view from before anything was moved, as in an engine
                layer.impl.do_kv_cache_update(kv(LATENT), kv(1, ROPE), cache, slots, "auto", layer._k_scale)
            else:
                rows = (self.kind.heads, self.kind.head_size)
                layer.impl.do_kv_cache_update(layer, kv(*rows), kv(*rows), cache, slots)

    def content(self) -> list[torch.Tensor]:
        return [self.caches[name][self.blocks].clone() for name in self.names]

    def wipe(self) -> None:
        for cache in self.caches.values():
            cache.zero_()


class OwnTransfers:
    def __init__(self, port: int, model: str, worker: Worker, shares: bool) -> None:
        groups = (CacheGroup(worker.names, worker.block_size),)
        self._worker = worker
        self._side = WorkerSide(
            Settings(url=f"tcp://127.0.0.1:{port}"),
            Placement(model, 1, 0),
            groups,
            "HND",
            with_order=None if shares else partial(with_order, layers=worker.layers, dtype=worker.dtype),
        )
        self._side.register_kv_caches(worker.caches)
        self._rig = Rig(self._side, Paged({}, groups, {}))

    def _transfer(self, salt: str, chunks: int) -> Any:
        end = chunks * CHUNK_TOKENS
        blocks = [self._worker.blocks[: end // self._worker.block_size]]
        return transfer(TOKENS, blocks, end=end, salt=salt, request=salt, chunk_tokens=CHUNK_TOKENS)

    def store(self, salt: str, chunks: int) -> None:
        self._rig.store(self._transfer(salt, chunks))

    def load(self, salt: str, chunks: int) -> None:
        self._rig.load(self._transfer(salt, chunks))

    def close(self) -> None:
        self._side.close()


class StockTransfers:
    def __init__(self, port: int, model: str, worker: Worker, mode: str) -> None:
        self._worker = worker
        strategy = ParallelStrategy(
            mla_only=False, vllm_world_size=1, vllm_worker_id=0, tp_size=1, pp_size=1, n_servers=1
        )
        self._context = zmq.Context()
        self._adapter = LMCacheMPWorkerAdapter(
            f"tcp://127.0.0.1:{port}",
            self._context,
            model,
            worker.block_size,
            strategy,
            extra_config={"lmcache.mp.mp_transfer_mode": mode, "lmcache.mp.mq_timeout": 20.0},
        )
        group = EngineGroupInfo(0, tuple(range(LAYERS)), worker.block_size)
        self._adapter.register_kv_caches(worker.caches, [group], {"kv_layout": "HND"})

    def _run(self, submit: Any, salt: str, chunks: int, place: int) -> None:
        """`place` of its end in what the adapter says has finished."""
        end = chunks * CHUNK_TOKENS
        blocks = self._worker.blocks[: end // self._worker.block_size]
        operation = LoadStoreOp(TOKENS[:end], [blocks], 0, end)
        submit([salt], [operation], self._adapter.create_recorded_event(), cache_salts=[salt])
        deadline = time.monotonic() + 20
        finished: set[str] = set()
        while salt not in finished:
            finished |= self._adapter.get_finished({salt})[place] or set()
            assert time.monotonic() < deadline, f"a transfer of {salt} has no end"
            time.sleep(0.002)

    def store(self, salt: str, chunks: int) -> None:
        self._run(self._adapter.batched_submit_store_requests, salt, chunks, 0)

    def load(self, salt: str, chunks: int) -> None:
        self._run(self._adapter.batched_submit_retrieve_requests, salt, chunks, 1)

    def close(self) -> None:
        self._adapter.shutdown()


@contextmanager
def transfers(port: int, model: str, worker: Worker, way: str) -> Iterator[OwnTransfers | StockTransfers]:
    opened: OwnTransfers | StockTransfers
    if way in ("own", "sharing"):
        opened = OwnTransfers(port, model, worker, shares=way == "sharing")
    else:
        opened = StockTransfers(port, model, worker, way)
    try:
        yield opened
    finally:
        opened.close()


def hits(port: int, model: str, salt: str) -> tuple[FakeEngine, int]:
    """The scheduler that holds them, and chunks."""
    scheduler = FakeEngine(f"tcp://127.0.0.1:{port}", model=model, salt=salt)
    return scheduler, scheduler.lookup(TOKENS, salt)


def check(port: int, model: str, kind: Kind, sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
    ends = [(way, size) for way in WAYS for size in sizes]
    chunks = len(TOKENS) // CHUNK_TOKENS
    for way, size in ends:
        worker = Worker(kind, size)
        with transfers(port, model, worker, way) as opened:
            worker.compute()
            opened.store(f"{way}-{size}", chunks)
    for way, size in ends:
        worker = Worker(kind, size)
        with transfers(port, model, worker, way) as opened:
            worker.compute()
            right = worker.content()
            opened.store(f"first of {way}-{size}", 1)  # with it the server sees where the layers compute
            for writer in ends:
                worker.wipe()
                salt = "-".join(map(str, writer))
                scheduler, found = hits(port, model, salt)
                if found:
                    opened.load(salt, found)
                loaded = found * CHUNK_TOKENS // size
                same = all(
                    torch.equal(mine[:loaded], truth[:loaded])
                    for mine, truth in zip(worker.content(), right, strict=True)
                )
                scheduler.end(salt)
                scheduler.close()
                yield {"writer": writer, "reader": (way, size), "hits": found, "right": same}


if __name__ == "__main__":
    port, name, *wanted = sys.argv[1:]
    sizes = [size for size in map(int, wanted) if size in KINDS[name].sizes]
    print("RESULT", json.dumps(list(check(int(port), f"model-{name}", KINDS[name], sizes))))
