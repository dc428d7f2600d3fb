"""Stores and retrieves through the stock LMCache client, and prints one JSON line per pass.

Runs in `.venv-engine`; `benchmarks/transfer.py` starts it.  The client is the same for every server that is measured.
The first pass touches memory for the first time; the later ones, after a clear, use it again.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

import torch

LAYOUTS = {
    "8b": ("(2,{blocks},16,8,128):bfloat16:32", 32 << 20),
    "small": ("(2,{blocks},16,1,64):bfloat16:2", 128 << 10),
}
"""A cache shape as the client wants it, and the bytes of a chunk of 256 tokens in it."""

COPIED_BYTES = 256 << 20
"""Memory that memmove goes through, several times the caches: a transfer finds little in them either."""


def cpu_ms(pid: int) -> float:
    """CPU time of all threads of a process, from the scheduler's own nanosecond count; threads that ended are missed."""
    tasks = pathlib.Path(f"/proc/{pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e6


class Memmove:
    """What one copy of as many bytes takes in this process: the limit of any transfer."""

    def __init__(self, size: int) -> None:
        count = max(1, COPIED_BYTES // size)
        self._size, self._places = size, itertools.cycle(range(0, count * size, size))
        self._source = torch.ones(count * size, dtype=torch.uint8)
        self._target = torch.ones(count * size, dtype=torch.uint8)

    def ms(self) -> float:
        place = next(self._places)
        start_time = time.perf_counter()
        ctypes.memmove(self._target.data_ptr() + place, self._source.data_ptr() + place, self._size)
        return (time.perf_counter() - start_time) * 1e3


def head_major_pages() -> None:
    """From now on the stock client's pages have their heads in front of their tokens, and it says so."""
    from lmcache.cli.commands.bench.server_bench import helpers  # this module is imported without that package too
    from lmcache.v1.multiprocess import transfer_context as contexts

    allocate = helpers._allocate_kv_cache

    def allocated(*args: Any, **kwargs: Any) -> list[torch.Tensor]:
        return [tensor.transpose(2, 3).contiguous() for tensor in allocate(*args, **kwargs)]

    helpers._allocate_kv_cache = allocated
    for kind in (contexts.EngineDrivenTransferContext, contexts.LMCacheDrivenTransferContext):
        kind.register = _with_hint(kind.register)


def _with_hint(register: Callable[..., Any]) -> Callable[..., Any]:
    def registered(*args: Any, **kwargs: Any) -> Any:
        return register(*args, **{**kwargs, "layout_hints": {"kv_layout": "HND"}})

    return registered


def parser(says: str | None) -> argparse.ArgumentParser:
    """The options that clients of this benchmark have."""
    made = argparse.ArgumentParser(description=says)
    made.add_argument("--port", type=int, required=True)
    made.add_argument("--http-port", type=int, required=True)
    made.add_argument("--server-pid", type=int, required=True)
    made.add_argument("--layout", choices=LAYOUTS, default="8b")
    made.add_argument("--transfer-mode", choices=("engine_driven", "lmcache_driven"), default="engine_driven")
    made.add_argument("--head-major", action="store_true", help="pages with heads before tokens")
    made.add_argument("--chunks", type=int, default=4)
    made.add_argument("--requests", type=int, default=8)
    made.add_argument("--passes", type=int, default=3)
    return made


def main() -> None:
    from lmcache.cli.commands.bench.server_bench.client import ServerBenchClient  # likewise
    from lmcache.cli.commands.bench.server_bench.config import BenchConfig

    args = parser(__doc__).parse_args()
    os.environ["LMCACHE_TRACK_USAGE"] = "false"
    torch.set_num_threads(1)  # two threads of one client and a server spin against each other on two cores
    shape, chunk_bytes = LAYOUTS[args.layout]
    size = args.chunks * chunk_bytes
    blocks = max(args.chunks * 32, 64)
    if args.head_major:
        head_major_pages()
    client = ServerBenchClient(
        BenchConfig(
            rpc_url=f"tcp://127.0.0.1:{args.port}",
            http_url=f"http://127.0.0.1:{args.http_port}",
            mode="cpu",
            transfer_mode=args.transfer_mode,
            tp_size=1,
            use_mla=False,
            num_tokens=args.chunks * 256,
            kvcache_shape_spec=shape.format(blocks=blocks),
            num_blocks=blocks,
            block_size=16,
        ),
        lambda message: None,
    )
    client.start()
    memmove = Memmove(size)
    for number in range(args.passes):
        stores, retrieves, store_cpu, retrieve_cpu, copies = [], [], [], [], []
        for request in range(args.requests):
            item = client.create_request(request + number * 1000, f"p{number}-{request}-cold", "cold")
            assert client.lookup(item).is_full_miss
            before = cpu_ms(args.server_pid)
            done = client.store(item, 0, item.num_full_tokens)
            store_cpu.append(cpu_ms(args.server_pid) - before)
            assert done.succeeded
            stores.append(done.latency_ms)
            copies.append(memmove.ms())
            client.end_session(item)
        for request in range(args.requests):
            item = client.create_request(request + number * 1000, f"p{number}-{request}-warm", "warm")
            assert client.lookup(item).is_full_hit
            before = cpu_ms(args.server_pid)
            done = client.retrieve(item, 0, item.num_full_tokens)
            retrieve_cpu.append(cpu_ms(args.server_pid) - before)
            assert done.succeeded
            retrieves.append(done.latency_ms)
            client.end_session(item)
        result = {
            "pass": number,
            "bytes": size,
            "memmove_ms": copies,
            "store_ms": stores,
            "retrieve_ms": retrieves,
            "store_cpu_ms": store_cpu,
            "retrieve_cpu_ms": retrieve_cpu,
        }
        print(json.dumps(result), flush=True)
        client._req_client.clear(True).result(timeout=60)
    client.close()


if __name__ == "__main__":
    main()
