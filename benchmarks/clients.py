"""What the typed clients cost beside a bare socket, and what mapped memory costs on first use.

    .venv/bin/python -m benchmarks.clients [--rounds 5]

The ways take turns over one server.  Figures are medians over the rounds; CPU is this process's.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.frames import NOOP
from benchmarks.peer import Peer
from demo.server_process import HOST, LMCACHE, ServerProcess
from lmcache_core import NOOP as NOOP_OPERATION
from lmcache_core import AsyncEngineClient, EngineChannel, EngineClient, L1Segment, PromptTokens, encode_tokens

TRIPS: Final = 1000
TOKENS: Final = 131_072
GROWN_TOKENS: Final = 256
MIB: Final = 2**20
TOUCHED_MIB: Final = 64
L1_GB: Final = "0.5"


class Cost(NamedTuple):
    wall_us: float
    cpu_us: float


def bare(port: int, count: int) -> None:
    with Peer(port) as peer:
        for _ in range(count):
            peer.ask(NOOP)


def client(port: int, count: int) -> None:
    with EngineClient(f"tcp://{HOST}:{port}") as one:
        for _ in range(count):
            one.noop()


def channel(port: int, count: int) -> None:
    with EngineChannel(f"tcp://{HOST}:{port}") as one:
        for _ in range(count):
            one.noop()


def futures(port: int, count: int) -> None:
    with EngineChannel(f"tcp://{HOST}:{port}") as one:
        for _ in range(count):
            one.submit(NOOP_OPERATION).result()


def async_client(port: int, count: int) -> None:
    async def ask() -> None:
        async with AsyncEngineClient(f"tcp://{HOST}:{port}") as one:
            for _ in range(count):
                await one.noop()

    asyncio.run(ask())


WAYS: Final = {
    "bare socket": bare,
    "EngineClient": client,
    "EngineChannel, call": channel,
    "EngineChannel, future": futures,
    "AsyncEngineClient": async_client,
}


@contextmanager
def running() -> Iterator[ServerProcess]:
    with tempfile.TemporaryDirectory() as folder:
        server = ServerProcess(["--l1-size-gb", L1_GB], Path(folder) / "server.log", executable=LMCACHE)
        server.start(timeout_seconds=120)
        try:
            yield server
        finally:
            server.stop()


def cost(run: Callable[[], None], count: int) -> Cost:
    start_time, cpu = time.perf_counter(), time.process_time()
    run()
    return Cost((time.perf_counter() - start_time) / count * 1e6, (time.process_time() - cpu) / count * 1e6)


def round_trips(port: int, rounds: int, trips: int) -> dict[str, Cost]:
    taken: dict[str, list[Cost]] = {name: [] for name in WAYS}
    for number in range(rounds):
        turn = number % len(WAYS)
        for name in [*list(WAYS)[turn:], *list(WAYS)[:turn]]:
            taken[name].append(cost(lambda way=WAYS[name]: way(port, trips), trips))  # type: ignore[misc]
    return {name: Cost(*map(statistics.median, zip(*costs, strict=True))) for name, costs in taken.items()}


def prompts() -> dict[str, Cost]:
    """A long prompt that is sent again and again, 256 tokens longer each time."""
    tokens = [number * 7919 % 150_000 for number in range(TOKENS)]
    more = tokens[:GROWN_TOKENS]
    prompt = PromptTokens(tokens)

    def grow() -> None:
        prompt.extend(more)
        prompt.encoded()

    return {
        "encode_tokens, all of it": min(cost(lambda: void(encode_tokens(tokens)), 1) for _ in range(9)),
        f"PromptTokens, {GROWN_TOKENS} more": min(cost(grow, 1) for _ in range(9)),
    }


def void(value: object) -> None:
    """Leave a value alone."""


def touches(port: int) -> dict[str, Cost]:
    """Writing fresh stretches of L1, per MiB: on first use, again, and after they were mapped ahead."""
    with EngineClient(f"tcp://{HOST}:{port}") as one:
        hello = one.hello()
    assert hello is not None
    data = bytes(MIB)

    def write(begin: int) -> None:
        for offset in range(begin, begin + TOUCHED_MIB * MIB, MIB):
            segment.view[offset : offset + MIB] = data

    with L1Segment(hello.segment, hello.l1_bytes) as segment:
        found = {
            "first use": cost(lambda: write(0), TOUCHED_MIB),
            "again": cost(lambda: write(0), TOUCHED_MIB),
        }
        ahead = TOUCHED_MIB * MIB
        segment.prefault(ahead, ahead)
        while segment.prefaulted_bytes < ahead:
            time.sleep(0.001)
        return {**found, "after prefault": cost(lambda: write(ahead), TOUCHED_MIB)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trips", type=int, default=TRIPS)
    args = parser.parse_args()
    with running() as server:
        tables = {
            "round trip of a noop": round_trips(server.port, args.rounds, args.trips),
            f"prompt of {TOKENS} tokens": prompts(),
            "1 MiB written into L1": touches(server.port),
        }
    for heading, rows in tables.items():
        print(f"\n| {heading:32} | wall, us | own CPU, us |\n|---|---|---|")
        for name, taken in rows.items():
            print(f"| {name:32} | {taken.wall_us:8.0f} | {taken.cpu_us:11.0f} |")


if __name__ == "__main__":
    main()
