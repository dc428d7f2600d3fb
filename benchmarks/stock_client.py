"""Stores and retrieves through the stock LMCache client, and prints one JSON line per pass.

Runs in `.venv-engine`; `benchmarks/transfer.py` starts it.  The client is the same for every server that is measured.
The first pass touches memory for the first time; the later ones, after a clear, use it again.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import time

import torch
from lmcache.cli.commands.bench.server_bench.client import ServerBenchClient
from lmcache.cli.commands.bench.server_bench.config import BenchConfig

LAYOUTS = {
    "8b": ("(2,{blocks},16,8,128):bfloat16:32", 32 << 20),
    "small": ("(2,{blocks},16,1,64):bfloat16:2", 128 << 10),
}
"""A cache shape as the client wants it, and the bytes of a chunk of 256 tokens in it."""


def cpu_ms(pid: int) -> float:
    """CPU time of all threads of a process, from the scheduler's own nanosecond count; threads that ended are missed."""
    tasks = pathlib.Path(f"/proc/{pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e6


def memcpy_gb_s(size: int) -> float:
    """What one copy of as many bytes takes in this process: the limit of any transfer."""
    source, target = torch.ones(size, dtype=torch.uint8), torch.empty(size, dtype=torch.uint8)
    target.copy_(source)
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        target.copy_(source)
        times.append(time.perf_counter() - begun)
    return size / sorted(times)[2] / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--http-port", type=int, required=True)
    parser.add_argument("--server-pid", type=int, required=True)
    parser.add_argument("--layout", choices=LAYOUTS, default="8b")
    parser.add_argument("--chunks", type=int, default=4)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--passes", type=int, default=3)
    args = parser.parse_args()
    os.environ["LMCACHE_TRACK_USAGE"] = "false"
    torch.set_num_threads(1)  # two threads of one client and a server spin against each other on two cores
    shape, chunk_bytes = LAYOUTS[args.layout]
    size = args.chunks * chunk_bytes
    blocks = max(args.chunks * 32, 64)
    client = ServerBenchClient(
        BenchConfig(
            rpc_url=f"tcp://127.0.0.1:{args.port}",
            http_url=f"http://127.0.0.1:{args.http_port}",
            mode="cpu",
            transfer_mode="engine_driven",
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
    memcpy = memcpy_gb_s(max(size, 1 << 20))
    for number in range(args.passes):
        stores, retrieves, store_cpu, retrieve_cpu = [], [], [], []
        for request in range(args.requests):
            item = client.create_request(request + number * 1000, f"p{number}-{request}-cold", "cold")
            assert client.lookup(item).is_full_miss
            before = cpu_ms(args.server_pid)
            done = client.store(item, 0, item.num_full_tokens)
            store_cpu.append(cpu_ms(args.server_pid) - before)
            assert done.succeeded
            stores.append(done.latency_ms)
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
            "memcpy_gb_s": memcpy,
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
