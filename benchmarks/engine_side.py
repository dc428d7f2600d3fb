"""One in-process cache, ours or the public package's, over the KV pages of a model, without a serving engine.

Prints milliseconds of each call as JSON.  Both move bytes with the same page copier.  Runs in the environment of its side.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from lmcache_kv_layout import LayoutHints, PageCopier, TensorView, detect_groups

LAYERS, HEADS, WIDTH, CHUNK, CHUNKS, BLOCK = 16, 8, 64, 256, 32, 16
"""8,192 tokens of 32 KiB each: 8 MiB a chunk."""
TOKENS = CHUNK * CHUNKS
STORED = TOKENS // 4
GIGABYTES = 1.0
_FILLS = 18
"""Stores of a quarter until all memory was written once, and more has to go."""
_SHAPE = (LAYERS, 2, CHUNK, HEADS, WIDTH)


def own() -> Any:
    from lmcache_engine import (
        ChunkedTokenDatabase,
        CreateGPUConnector,
        EngineType,
        LMCacheEngine,
        LMCacheEngineConfig,
        LMCacheMetadata,
    )

    config = LMCacheEngineConfig.from_defaults(chunk_size=CHUNK, max_local_cpu_size=GIGABYTES)
    about = LMCacheMetadata("m", 1, 1, 0, 0, torch.bfloat16, _SHAPE)
    pages = CreateGPUConnector(config, about, EngineType.VLLM, {"kv_layout": "HND"})
    return LMCacheEngine(config, about, ChunkedTokenDatabase(config, about), pages)


class PublicPages:
    """What the public engine copies pages with; it has no connector of its own for host memory."""

    def __init__(self) -> None:
        self.kvcaches: list[torch.Tensor] = []
        self._copier = PageCopier()

    def initialize_kvcaches_ptr(self, **given: Any) -> None:
        if given["kvcaches"] is self.kvcaches:
            return
        self.kvcaches = given["kvcaches"]
        views = [
            TensorView(str(each.dtype), tuple(each.shape), tuple(each.stride()), 0, number)
            for number, each in enumerate(self.kvcaches)
        ]
        (self._group,) = detect_groups(views, LayoutHints(kv_layout="HND"))
        self._bases = [self.kvcaches[storage].data_ptr() + offset for storage, offset in self._group.bases]

    def get_shape(self, num_tokens: int) -> torch.Size:
        return torch.Size([2, LAYERS, num_tokens, HEADS * WIDTH])

    def batched_from_gpu(
        self, objects: Sequence[Any], starts: Sequence[int], ends: Sequence[int], **given: Any
    ) -> None:
        self._move(self._copier.gather, objects, starts, ends, given)

    def batched_to_gpu(self, objects: Sequence[Any], starts: Sequence[int], ends: Sequence[int], **given: Any) -> None:
        self._move(self._copier.scatter, objects, starts, ends, given)

    def _move(
        self, copy: Callable[..., int], objects: Sequence[Any], starts: Sequence[int], ends: Sequence[int], given: Any
    ) -> None:
        self.initialize_kvcaches_ptr(**given)
        first = (given["slot_mapping"][::BLOCK] // BLOCK).tolist()
        blocks = [block for at, end in zip(starts, ends, strict=True) for block in first[at // BLOCK : end // BLOCK]]
        copy(self._group, self._bases, blocks, [each.tensor.data_ptr() for each in objects])


def public() -> Any:
    from lmcache.v1.cache_engine import LMCacheEngineBuilder
    from lmcache.v1.config import LMCacheEngineConfig
    from lmcache.v1.metadata import LMCacheMetadata

    config = LMCacheEngineConfig.from_defaults(chunk_size=CHUNK, local_cpu=True, max_local_cpu_size=GIGABYTES)
    about = LMCacheMetadata(
        model_name="m",
        world_size=1,
        local_world_size=1,
        worker_id=0,
        local_worker_id=0,
        kv_dtype=torch.bfloat16,
        kv_shape=_SHAPE,
    )
    return LMCacheEngineBuilder.get_or_create(
        "benchmark", config, about, PublicPages(), lambda tensor, source: None, lambda thing, source: thing
    )


def _milliseconds(call: Callable[[int], object], times: int) -> float:
    taken = []
    for number in range(times):
        began = time.perf_counter()
        call(number)
        taken.append((time.perf_counter() - began) * 1e3)
    return statistics.median(taken)


def measure(engine: Any) -> dict[str, float]:
    torch.manual_seed(1)
    blocks = 2 * TOKENS // BLOCK
    pages = [torch.randn(blocks, HEADS, BLOCK, 2 * WIDTH).to(torch.bfloat16) for _ in range(LAYERS)]
    tokens = [(7 * i * i + 13 * i) % 31000 + 10 for i in range(TOKENS)]
    prompt, slots = torch.tensor(tokens), torch.arange(TOKENS)
    elsewhere = slots + TOKENS
    engine.post_init(kvcaches=pages)

    def store(number: int) -> None:
        other = torch.tensor([(each + 1 + number) % 2**31 for each in tokens[:STORED]])
        engine.store(other, kvcaches=pages, slot_mapping=slots[:STORED])

    for number in range(_FILLS):
        store(number)
    figures = {"store": _milliseconds(lambda number: store(_FILLS + number), 7)}
    engine.store(prompt, kvcaches=pages, slot_mapping=slots)
    if (found := engine.lookup(tokens)) != TOKENS:
        raise SystemExit(f"{found} of {TOKENS} tokens were found")
    figures["lookup"] = _milliseconds(lambda number: engine.lookup(tokens), 30)
    half = tokens[: TOKENS // 2]
    others = [[*half, *((each + 7 + number) % 2**31 for each in tokens[TOKENS // 2 :])] for number in range(30)]
    figures["lookup, half new"] = _milliseconds(lambda number: engine.lookup(others[number]), 30)
    mask = engine.retrieve(prompt, kvcaches=pages, slot_mapping=elsewhere)
    middle = blocks // 2
    if int(mask.sum()) != TOKENS or not all(torch.equal(each[:middle], each[middle:]) for each in pages):
        raise SystemExit("what was retrieved is not what was stored")
    figures["retrieve"] = _milliseconds(
        lambda number: engine.retrieve(prompt, kvcaches=pages, slot_mapping=elsewhere), 7
    )
    size = TOKENS * LAYERS * 2 * HEADS * WIDTH * 2
    source, target = bytearray(size), bytearray(size)
    to, of = (ctypes.addressof(ctypes.c_char.from_buffer(each)) for each in (target, source))
    ctypes.memmove(to, of, size)
    return figures | {"memmove": _milliseconds(lambda number: ctypes.memmove(to, of, size), 7)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=["own", "public"])
    torch.set_num_threads(1)
    made = {"own": own, "public": public}[parser.parse_args().side]()
    found = measure(made)
    print(json.dumps(found))
    made.close()
    sys.stdout.flush()
