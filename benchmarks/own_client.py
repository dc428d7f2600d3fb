"""Stores and retrieves through the transfers of our own vLLM connector, and prints the lines that `stock_client.py` prints.

Runs in `.venv-engine`; `benchmarks/transfer.py` starts it.
"""

from __future__ import annotations

import json
import time
from typing import Any

import torch

from benchmarks.stock_client import LAYOUTS, Memmove, cpu_ms, parser
from lmcache_client import EngineChannel, encode_tokens
from lmcache_vllm.metadata import Transfer
from lmcache_vllm.placement import CacheGroup, Placement
from lmcache_vllm.transfer import BlockTransfers

SHAPES = {"8b": (32, 8, 128), "small": (2, 1, 64)}
"""Layers, heads and head size of the same layouts as the stock client's."""
BLOCK_TOKENS = 16
CHUNK_TOKENS = 256


def main() -> None:
    args = parser(__doc__).parse_args()
    torch.set_num_threads(1)
    layers, heads, head_size = SHAPES[args.layout]
    blocks = max(args.chunks * 32, 64)
    inner = (heads, BLOCK_TOKENS) if args.head_major else (BLOCK_TOKENS, heads)
    tensors = {
        f"layer.{layer}": torch.ones((2, blocks, *inner, head_size), dtype=torch.bfloat16) for layer in range(layers)
    }
    size = args.chunks * LAYOUTS[args.layout][1]
    memmove = Memmove(size)
    url = f"tcp://127.0.0.1:{args.port}"
    with (
        EngineChannel(url) as channel,
        BlockTransfers(
            url,
            Placement("bench", 1, 0),
            tensors,
            [CacheGroup(tuple(tensors), BLOCK_TOKENS)],
            kv_layout="HND" if args.head_major else "NHD",
        ) as transfers,
    ):

        def transfer(number: int, request: int, first_block: int) -> Transfer:
            end = args.chunks * CHUNK_TOKENS
            tokens = bytes(encode_tokens([number * 1000 + request + 1] * end))
            ids = tuple(range(first_block, first_block + end // BLOCK_TOKENS))
            return Transfer(next_id(), f"p{number}-{request}-{first_block}", tokens, 0, end, CHUNK_TOKENS, (ids,))

        used = 0

        def next_id() -> int:
            nonlocal used
            used += 1
            return used

        for number in range(args.passes):
            figures: dict[str, list[float]] = {
                name: [] for name in ("store_ms", "retrieve_ms", "store_cpu_ms", "retrieve_cpu_ms", "memmove_ms")
            }
            for name, move in (("store", transfers.store), ("retrieve", transfers.load)):
                for request in range(args.requests):
                    moved = transfer(number, request, 1)
                    before, start_time = cpu_ms(args.server_pid), time.perf_counter()
                    outcome = move(moved)
                    figures[f"{name}_ms"].append((time.perf_counter() - start_time) * 1e3)
                    figures[f"{name}_cpu_ms"].append(cpu_ms(args.server_pid) - before)
                    if (outcome.bytes, outcome.failure) != (size, ""):
                        raise RuntimeError(f"{name} of request {request}: {outcome}")
                    if name == "store":
                        figures["memmove_ms"].append(memmove.ms())
            result: dict[str, Any] = {"pass": number, "bytes": size, **figures}
            print(json.dumps(result), flush=True)
            channel.clear(True)


if __name__ == "__main__":
    main()
