"""`benchmarks.l1_index` for the public server's memory manager: the same operations, in its environment.

    .venv-engine/bin/python benchmarks/public_index.py [--keys 1000000]

Prints one JSON line with the same names.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import random
import threading
import time
from collections.abc import Callable
from hashlib import blake2b

import psutil
import torch
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.config import L1ManagerConfig, L1MemoryManagerConfig
from lmcache.v1.distributed.eviction import L1EvictionPolicy
from lmcache.v1.distributed.eviction_policy.lru import LRUEvictionPolicy
from lmcache.v1.distributed.l1_manager import L1Manager

BATCH, FILL_BATCH, HIT_BATCHES, ROUNDS, EVICTED_RATIO, OBJECT_BYTES = 32, 256, 6_000, 5, 0.2, 512
LAYOUT = MemoryLayoutDesc(shapes=[torch.Size([OBJECT_BYTES // 2])], dtypes=[torch.bfloat16])


def keys(first: int, count: int) -> list[ObjectKey]:
    digests = (blake2b(n.to_bytes(8, "little"), digest_size=32).digest() for n in range(first, first + count))
    return [ObjectKey(chunk_hash=digest, model_name="meta-llama/Llama-3.1-8B", kv_rank=65537) for digest in digests]


def hit(manager: L1Manager, names: list[ObjectKey]) -> None:
    manager.reserve_read(names)
    manager.finish_read(names)
    manager.touch_keys(names)


def evict(manager: L1Manager, policy: LRUEvictionPolicy, counts: list[int]) -> None:
    actions = policy.get_eviction_actions(EVICTED_RATIO, key_eligible_filter=manager.is_key_evictable)
    victims = [key for action in actions for key in action.keys]
    manager.delete(victims)
    counts.append(len(victims))


def waits(
    manager: L1Manager, batches: list[list[ObjectKey]], other: Callable[[], None]
) -> tuple[list[float], float, float]:
    """As `L1Index.waits`: seconds of each request, the most CPU time that `other` got meanwhile, and how long it took."""
    done, finish = threading.Event(), threading.Event()

    def body() -> None:
        other()
        done.set()
        finish.wait()

    thread, wall, behind, number = threading.Thread(target=body), [], 0.0, 0
    thread.start()
    clock = time.pthread_getcpuclockid(thread.ident or 0)
    start_time = time.perf_counter()
    while not done.is_set():
        at, used = time.perf_counter(), time.clock_gettime(clock)
        hit(manager, batches[number % len(batches)])
        wall.append(time.perf_counter() - at)
        behind = max(behind, time.clock_gettime(clock) - used)
        number += 1
    took = time.perf_counter() - start_time
    finish.set()
    thread.join()
    return sorted(wall), behind, took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    count = parser.parse_args().keys
    logging.disable(logging.WARNING)  # it complains about each object that eviction took
    memory = L1MemoryManagerConfig(
        size_in_bytes=max(64 << 20, int(count * 1.25) * OBJECT_BYTES), use_lazy=False, align_bytes=512, shm_name=""
    )
    manager, policy = L1Manager(L1ManagerConfig(memory_config=memory)), LRUEvictionPolicy()
    manager.register_listener(L1EvictionPolicy(policy))
    gc.collect()
    process = psutil.Process()
    before, fill = process.memory_info().rss, 0.0
    for first in range(0, count, FILL_BATCH):
        names = keys(first, min(FILL_BATCH, count - first))
        start_time = time.thread_time()
        manager.reserve_write(names, [False] * len(names), LAYOUT)
        manager.finish_write(names)
        fill += time.thread_time() - start_time
    gc.collect()
    grown = process.memory_info().rss - before
    rng = random.Random(1)
    batches = [keys(rng.randrange(count - BATCH), BATCH) for _ in range(HIT_BATCHES)]
    rounds = []
    for number in range(ROUNDS):
        mine = batches[number::ROUNDS]
        start_time = time.thread_time()
        for names in mine:
            hit(manager, names)
        rounds.append((time.thread_time() - start_time) / (len(mine) * BATCH))
    alone, _, _ = waits(manager, batches, lambda: time.sleep(1.0))
    evicted: list[int] = []
    beside, behind, took = waits(manager, batches, lambda: evict(manager, policy, evicted))
    print(
        json.dumps(
            {
                "l1_bytes_per_key": grown / count,
                "l1_fill_us": fill / count * 1e6,
                "l1_hit_us": sorted(rounds)[ROUNDS // 2] * 1e6,
                "l1_stall_alone_ms": alone[-1] * 1e3,
                "l1_stall_p999_ms": beside[int(len(beside) * 0.999)] * 1e3,
                "l1_stall_cpu_ms": behind * 1e3,
                "l1_stall_ms": beside[-1] * 1e3,
                "l1_evict_us": took / evicted[0] * 1e6,
            }
        ),
        flush=True,
    )
    os._exit(0)  # its threads would not end


if __name__ == "__main__":
    main()
