"""The public package's client of the lm:// protocol, in its own environment: `python public_client.py PORT...`.

It stores tensors of several shapes and types, loads them again, and prints what it saw at each store as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Coroutine
from typing import Any
from unittest.mock import MagicMock

import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.memory_allocators.ad_hoc_memory_allocator import AdHocMemoryAllocator
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.storage_backend.connector.lm_connector import LMCServerConnector

SHAPE = (2, 3, 4, 8)
DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.uint8)


class Backend:
    """What the client asks of the engine's memory."""

    def __init__(self) -> None:
        self.allocate = AdHocMemoryAllocator(device="cpu").allocate
        self.config = MagicMock(extra_config=None)
        self.metadata = MagicMock(chunk_size=SHAPE[2], dtype=torch.bfloat16)
        self.metadata.get_num_groups.return_value = 1
        self.metadata.get_shapes.return_value = [torch.Size(SHAPE)]
        self.metadata.get_dtypes.return_value = [torch.bfloat16]


def seen_at(port: int, loop: asyncio.AbstractEventLoop, backend: Backend) -> list[Any]:
    client = LMCServerConnector("127.0.0.1", port, loop, backend)

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(60)

    seen = []
    for number, dtype in enumerate(DTYPES):
        key = CacheEngineKey("org/model", 2, 1, 0xABC0 + number, dtype)
        tensor = backend.allocate(torch.Size(SHAPE), dtype, MemoryFormat.KV_2LTD)
        tensor.tensor.copy_(torch.arange(192).reshape(SHAPE).to(dtype))
        before = [run(client.exists(key)), client.exists_sync(key), run(client.get(key)) is not None]
        run(client.put(key, tensor))
        after = run(client.exists(key))
        found = run(client.get(key))
        same = bool(torch.equal(found.tensor, tensor.tensor))
        data = bytes(found.tensor.contiguous().view(torch.uint8).flatten().tolist())
        seen.append(
            [key.to_string(), before, after, same, list(found.tensor.shape), str(found.tensor.dtype), data.hex()]
        )
    run(client.close())
    return seen


def main() -> None:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    backend = Backend()
    print("\n" + json.dumps([seen_at(int(port), loop, backend) for port in sys.argv[1:]]))


if __name__ == "__main__":
    main()
