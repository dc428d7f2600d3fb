"""What peers bring, and what they cost, with real servers and engines that have no model.

    .venv/bin/python -m benchmarks.peers capacity --trace FILE [--one-in 16]
    .venv/bin/python -m benchmarks.peers fan-out [--rounds 15]
    .venv/bin/python -m benchmarks.peers lease [--chunks 1000]

`capacity`: four servers with a quarter of L1 each, with and without peers, beside one server with all of it.  They get some
conversations of a trace (hash ids, as Mooncake publishes them; or LMCACHE_MOONCAKE_TRACE names the file), whose distinct blocks
are 0.9 of all of L1.  Each request goes to a random server, the same one in every subject.  A block is a chunk.
`fan-out`: four servers, alone and with 60 simulated members: questions to the directory and peers that one lookup asks; what a
full miss costs beside a server without peers, in turns; and the same of hits and misses after the coordinator was killed.
`lease`: CPU time of the owner's router thread for one lookup of 1,000 chunks (--chunks) by a peer, until the lease has ended.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks import machine
from demo.server_process import ServerProcess
from lmcache_core import HEADER_BYTES, ObjectKey
from lmcache_devkit.fake_engine import FakeEngine
from lmcache_fleet.http_connection import HttpConnection
from lmcache_p2p.coordinators import Directory
from lmcache_policies.simulate.trace_file import read_trace
from tests.peers.simulated import SimulatedPeers
from tests.peers.site import CHUNK_TOKENS, Fleet, prompt, until

SERVERS: Final = 4
SHARE: Final = 0.9
"""Of all of L1: the distinct chunks of the trace's part."""
SIMULATED: Final = 60
LOOKUPS: Final = 40
"""Of each side in one round."""
PROMPT_CHUNKS: Final = 60
CHUNK_BYTES: Final = 12_288
"""Of an object of these engines, with its header page."""
ROUTER: Final = "p2p-owner"
SEED: Final = 7
GIB: Final = 1 << 30


class Requests(NamedTuple):
    prompts: list[list[int]]
    """Tokens."""
    chunks: int
    distinct: int


def requests_of(path: str, one_in: int) -> Requests:
    """Those of one conversation in `one_in`.  Turns of one have the block behind the first in common."""
    trace = read_trace(path)
    choice, is_chosen = random.Random(SEED), dict[int, bool]()
    seen, prompts, chunks = set[int](), list[list[int]](), 0
    for begin, end in pairwise(trace.starts):
        blocks = trace.blocks[begin:end]
        conversation = blocks[min(1, len(blocks) - 1)]
        if is_chosen.setdefault(conversation, choice.randrange(one_in) == 0):
            seen.update(blocks)
            chunks += len(blocks)
            prompts.append([block * CHUNK_TOKENS + each for block in blocks for each in range(CHUNK_TOKENS)])
    return Requests(prompts, chunks, len(seen))


# --- capacity


def capacity(given: argparse.Namespace) -> None:
    requests = requests_of(given.trace, given.one_in)
    room = int(requests.distinct / SHARE)
    print(
        f"{len(requests.prompts)} requests, {requests.chunks} chunks, {requests.distinct} of them distinct; "
        f"all of L1 takes {room}"
    )
    ratios = {}
    for name, servers, has_peers in (
        ("one server", 1, False),
        ("four with peers", 4, True),
        ("four without", 4, False),
    ):
        with running(servers, has_peers, room // servers) as engines:
            ratios[name] = hit_ratio(engines, requests)
        print(
            f"{name}: {ratios[name]:.3f} of all chunks are hits, {ratios[name] / ratios['one server']:.3f} of one server's"
        )


@contextmanager
def running(servers: int, has_peers: bool, chunks: int) -> Iterator[list[FakeEngine]]:
    """Engines of this number of servers, each with an L1 for this number of chunks."""
    size = ("--l1-size-gb", f"{chunks * CHUNK_BYTES / GIB:.6f}")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        if has_peers:
            processes = [each.process for each in stack.enter_context(Fleet(Path(folder), servers, *size)).servers]
        else:
            processes = [alone(Path(folder) / f"{number}.log", *size) for number in range(servers)]
            for process in processes:
                stack.enter_context(process)
        yield [stack.enter_context(FakeEngine(f"tcp://127.0.0.1:{process.port}")) for process in processes]


def alone(log: Path, *options: str) -> ServerProcess:
    """A server without peers."""
    return ServerProcess(["--chunk-size", str(CHUNK_TOKENS), "--l1-size-gb", "0.2", *options], log)


def hit_ratio(engines: Sequence[FakeEngine], requests: Requests) -> float:
    """Of all chunks.  What was found is compared with what it should be, and the rest is stored."""
    assert {HEADER_BYTES + engine.layout.payload_bytes for engine in engines} == {CHUNK_BYTES}
    choice, hits = random.Random(SEED), 0
    for number, tokens in enumerate(requests.prompts):
        engine, name = engines[choice.randrange(SERVERS) % len(engines)], f"{number}"
        found = engine.lookup(tokens, name)
        hits += found
        end = found * CHUNK_TOKENS
        if found:
            last = engine.retrieve(tokens, name, end - CHUNK_TOKENS, end)
            assert last == [engine.content(tokens, found - 1)]
        if end < len(tokens):
            engine.store(tokens, name, end)
        engine.end(name)
    return hits / requests.chunks


# --- fan-out


def fan_out(given: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        fleet = Fleet(Path(folder), SERVERS)
        fleet.coordinator.flags += ("--instance-timeout", "600")
        stack.enter_context(fleet)
        other = stack.enter_context(alone(Path(folder) / "alone.log"))
        with_peers = stack.enter_context(fleet.servers[0].engine())
        without = stack.enter_context(FakeEngine(f"tcp://127.0.0.1:{other.port}"))
        print(f"4 members: {messages(fleet, with_peers, parts(fleet, 1))}")
        compare(f"a full miss of {PROMPT_CHUNKS} chunks, 4 members", with_peers, without, given.rounds, misses(10_000))
        peers = stack.enter_context(SimulatedPeers(fleet.coordinator, SIMULATED))
        until(lambda: fleet.members() == SERVERS + SIMULATED)
        tokens = parts(fleet, 2)
        peers.claim([key for server in fleet.servers[1:] for key in server.keys()])  # noqa: SIM118 - of a server
        print(f"64 members: {messages(fleet, with_peers, tokens, peers)}")
        compare(f"a full miss of {PROMPT_CHUNKS} chunks, 64 members", with_peers, without, given.rounds, misses(20_000))
        print(f"a question to the directory alone: {question_ms(fleet):.2f} ms (p50)")
        tokens = prompt(3, PROMPT_CHUNKS)
        for engine in (with_peers, without):
            engine.store(tokens)
            engine.end()
        fleet.coordinator.kill()
        print("the coordinator is dead")
        compare("a hit in the own L1", with_peers, without, given.rounds, lambda: tokens)
        compare("a full miss", with_peers, without, given.rounds, misses(30_000))


def parts(fleet: Fleet, number: int) -> list[int]:
    """A prompt, of which each server but the first has a part."""
    owners = fleet.servers[1:]
    share = PROMPT_CHUNKS // len(owners)
    tokens = prompt(number, share * len(owners))
    for place, owner in enumerate(owners):
        before = fleet.known(owner.name)
        with owner.engine() as engine:
            begin = place * share * CHUNK_TOKENS
            engine.store(tokens, "r", begin, begin + share * CHUNK_TOKENS)
            engine.end()
        until(lambda owner=owner, before=before: fleet.known(owner.name) == before + share)  # type: ignore[misc]
    return tokens


def messages(fleet: Fleet, engine: FakeEngine, tokens: list[int], simulated: SimulatedPeers | None = None) -> str:
    """What the lookup of this prompt asks."""

    def asked() -> tuple[int, dict[str, int]]:
        reader = fleet.servers[0].status()["reader"]
        return reader["directory_asked"], {name: peer["asked"] for name, peer in reader["peers"].items()}

    questions, before = asked()
    found = engine.lookup(tokens, "messages")
    engine.end("messages")
    questions_after, after = asked()
    peers = sum(after[name] > before.get(name, 0) for name in after)
    chunks = len(tokens) // CHUNK_TOKENS
    return f"{questions_after - questions} questions to the directory, {peers} peers asked, {found} of {chunks} chunks"


def question_ms(fleet: Fleet) -> float:
    """The median for as many keys as a prompt has, that no server has, from this process."""
    space = fleet.servers[1].keys()[0].space
    seconds = []
    with closing(HttpConnection(fleet.coordinator.url)) as connection:
        directory = Directory([connection], "")
        for _ in range(10 * LOOKUPS):
            keys = [ObjectKey(space, random.randbytes(32)) for _ in range(PROMPT_CHUNKS)]
            start = time.perf_counter()
            directory.owners(keys)
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) * 1000


def misses(first: int) -> Callable[[], list[int]]:
    """Prompts that no server has."""
    numbers = iter(range(first, 1 << 21))
    return lambda: prompt(next(numbers), PROMPT_CHUNKS)


def compare(
    what: str, with_peers: FakeEngine, without: FakeEngine, rounds: int, new_prompt: Callable[[], list[int]]
) -> None:
    """Lookups of both in turns: medians of all, and of the rounds' differences and ratios."""
    medians: list[tuple[float, float]] = []
    for _ in range(rounds):
        taken = tuple[list[float], list[float]](([], []))
        for number in range(2 * LOOKUPS):
            engine, tokens = (with_peers, without)[number % 2], new_prompt()
            key = engine.key(tokens, "timed", 0, len(tokens), of_worker=False)
            start = time.perf_counter()
            engine.scheduler.lookup(key)
            assert engine.scheduler.wait_prefetch_status("timed", 10.0) is not None  # without a client's pauses
            taken[number % 2].append(time.perf_counter() - start)
            engine.end("timed")
        medians.append((statistics.median(taken[0]), statistics.median(taken[1])))
    own, others = (statistics.median(each) * 1000 for each in zip(*medians, strict=True))
    more = statistics.median(a - b for a, b in medians) * 1000
    low, ratio, high = statistics.quantiles([a / b for a, b in medians], n=4)
    print(
        f"{what}: {own:.2f} ms with peers, {others:.2f} ms without (p50); "
        f"{more:+.2f} ms, {ratio:.2f} times ({low:.2f} to {high:.2f})"
    )


# --- lease


def lease(given: argparse.Namespace) -> None:
    gigabytes = 8 * given.chunks * CHUNK_BYTES / GIB
    with tempfile.TemporaryDirectory() as folder, Fleet(Path(folder), 2, "--l1-size-gb", f"{gigabytes:.4f}") as fleet:
        owner, reader = fleet.servers
        tokens = prompt(1, given.chunks)
        with owner.engine() as first, reader.engine() as second:
            fleet.store(first, owner, [tokens])
            router, taken = router_of(owner.process), []
            for number in range(given.rounds + 1):
                before = cpu_ms(router)
                assert second.lookup(tokens, f"{number}") == given.chunks
                second.end(f"{number}")
                until(lambda: owner.status()["leases"] == 0)
                taken.append(cpu_ms(router) - before)
    print(
        f"a lease of {given.chunks} chunks: {statistics.median(taken[1:]):.2f} ms of the router thread (median), "
        f"{min(taken):.2f} at best"
    )


def router_of(server: ServerProcess) -> Path:
    """Where the kernel says what the thread that answers peers has used."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/threads", timeout=20) as answer:
        (number,) = [each["native_id"] for each in json.load(answer)["threads"] if each["name"] == ROUTER]
    return Path(f"/proc/{server.pid}/task/{number}/schedstat")


def cpu_ms(task: Path) -> float:
    return int(task.read_text().split()[0]) / 1e6


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words = parser.add_subparsers(required=True)
    word = words.add_parser("capacity")
    word.set_defaults(run=capacity)
    trace = os.environ.get("LMCACHE_MOONCAKE_TRACE")
    word.add_argument("--trace", metavar="FILE", default=trace, required=trace is None)
    word.add_argument("--one-in", type=int, default=16, metavar="N", help="take one conversation in N")
    word = words.add_parser("fan-out")
    word.set_defaults(run=fan_out)
    word.add_argument("--rounds", type=int, default=15)
    word = words.add_parser("lease")
    word.set_defaults(run=lease)
    word.add_argument("--rounds", type=int, default=20)
    word.add_argument("--chunks", type=int, default=1000)
    given = parser.parse_args(arguments)
    print(", ".join(machine.description().values()))
    given.run(given)


if __name__ == "__main__":
    main(sys.argv[1:])
