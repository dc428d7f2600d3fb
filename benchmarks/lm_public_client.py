"""The public client of the lm:// protocol under load, in the engine's environment: `python -m benchmarks.lm_public_client PORT
OBJECTS DEPTH`.  Each line of its input is `store ROUND` or `load ROUND`; it answers with the seconds and the processor time."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from typing import Any
from unittest.mock import MagicMock

import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.memory_allocators.ad_hoc_memory_allocator import AdHocMemoryAllocator
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.storage_backend.connector.lm_connector import LMCServerConnector

SHAPE = torch.Size((2, 8, 256, 512))
"""4 MiB of bfloat16."""


class Memory:
    """What the client asks of an engine's memory: objects that were touched before, in turns."""

    def __init__(self, count: int) -> None:
        allocator = AdHocMemoryAllocator(device="cpu")
        made = [allocator.allocate(SHAPE, torch.bfloat16, MemoryFormat.KV_2LTD) for _ in range(count)]
        for each in made:
            each.tensor.fill_(1)
        self._objects = itertools.cycle(made)
        self.config = MagicMock(extra_config=None)
        self.metadata = MagicMock(chunk_size=SHAPE[2], dtype=torch.bfloat16)
        self.metadata.get_num_groups.return_value = 1
        self.metadata.get_shapes.return_value = [SHAPE]
        self.metadata.get_dtypes.return_value = [torch.bfloat16]

    def allocate(self, *_: Any, **__: Any) -> Any:
        return next(self._objects)


async def serve() -> None:
    port, count, depth = map(int, sys.argv[1:])
    memory = Memory(2 * count)
    client = LMCServerConnector("127.0.0.1", port, asyncio.get_running_loop(), memory)
    given = [memory.allocate() for _ in range(count)]
    for number, each in enumerate(given):
        each.tensor.fill_(number)
    print("ready", flush=True)
    for line in sys.stdin:
        verb, turn = line.split()
        keys = [CacheEngineKey("m", 1, 0, int(turn) << 32 | at, torch.bfloat16) for at in range(count)]
        taken: list[Any] = []
        cpu, began = time.process_time(), time.perf_counter()
        for at in range(0, count, depth):
            some = range(at, min(at + depth, count))
            if verb == "store":
                await asyncio.gather(*(client.put(keys[i], given[i]) for i in some))
                await client.exists(keys[some[-1]])  # a PUT has no answer
            else:
                taken += await asyncio.gather(*(client.get(keys[i]) for i in some))
        seconds, busy = time.perf_counter() - began, time.process_time() - cpu
        wrong = sum(not torch.equal(back.tensor, each.tensor) for back, each in zip(taken, given, strict=False))
        print(json.dumps({"seconds": seconds, "cpu": busy, "wrong": wrong}), flush=True)
    await client.close()


if __name__ == "__main__":
    asyncio.run(serve())
