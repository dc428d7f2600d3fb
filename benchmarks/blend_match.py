"""How long it takes to find stored chunks in a prompt by their tokens, and what the index takes.

    .venv/bin/python -m benchmarks.blend_match [--rows pure compiled ...] [--tokens 32768] [--chunk-tokens 64] [--stride 1]

Prints one JSON line for each row, each from a process of its own.  The index gets `registrations` chunks, of which it keeps
`chunks`; every prompt is new, of random tokens with kept chunks planted at random offsets.  Times are CPU times, with decoding
from the wire form.  Memory is what the process grew by.  A prompt of a space that the index does not know is what no match
costs.

The row `beside` has a whole server, whose index is full: the round trip of a `noop` while another engine looks up new prompts
without pause, by ordinary lookups and by those of engines that blend.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from multiprocessing.connection import Connection
from statistics import median, quantiles
from typing import Any, Final, Literal, NamedTuple

import psutil

from lmcache_blend.module import BlendModule
from lmcache_blend_index import ChunkIndex
from lmcache_client import BLEND_LOOKUP
from lmcache_client.client import EngineClient
from lmcache_client.engine_key import TokenSequence, encode_tokens
from lmcache_core.app.build import build
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.settings import ServerSettings
from lmcache_devkit import free_port
from lmcache_devkit.fake_engine import FakeEngine

PROMPTS: Final = 40
PLANTED: Final = 16
"""In each prompt."""
SPACE: Final = "space"
BESIDE_SECONDS: Final = 10.0
SPAWN: Final = multiprocessing.get_context("spawn")


class Row(NamedTuple):
    native: Literal["on", "off"]
    chunks: int
    registrations: int


ROWS: Final = {
    "pure": Row("off", 1_000_000, 2_000_000),
    "compiled": Row("on", 1_000_000, 2_000_000),
    "compiled-4m": Row("on", 4_000_000, 8_000_000),
    "compiled-10m": Row("on", 1_000_000, 10_000_000),
}
BESIDE: Final = "beside"


class Given(NamedTuple):
    tokens: int
    chunk_tokens: int
    stride: int


def drawn(count: int) -> array[int]:
    return array("I", os.urandom(4 * count))


def chunk_hash(number: int) -> bytes:
    return blake2b(number.to_bytes(8, "little"), digest_size=32).digest()


def milliseconds(prompts: list[TokenSequence], look: Callable[[TokenSequence], object]) -> dict[str, float]:
    taken = []
    for prompt in prompts:
        started = time.thread_time()
        look(prompt)
        taken.append(1000 * (time.thread_time() - started))
    low, *_, high = quantiles(taken, n=10)
    return {"median": round(median(taken), 2), "p10": round(low, 2), "p90": round(high, 2)}


def matched(row: Row, given: Given) -> dict[str, Any]:
    size, process = given.chunk_tokens, psutil.Process()
    before = process.memory_info().rss
    index = ChunkIndex(size, row.chunks, native=row.native)
    kept: list[array[int]] = []
    adding = 0.0
    for number in range(row.registrations):
        tokens, name = drawn(size), chunk_hash(number)
        started = time.thread_time()
        index.add(SPACE, tokens, name, number, 0)
        adding += time.thread_time() - started
        if number >= row.registrations - row.chunks and number % (1 + row.chunks // 1000) == 0:
            kept.append(tokens)
    grown = process.memory_info().rss - before
    source, found, planted, prompts = random.Random(1), 0, 0, []
    for _ in range(PROMPTS):
        tokens = drawn(given.tokens)
        slots = source.sample(range(given.tokens // (2 * size)), PLANTED)
        for at, chunk in zip(slots, source.sample(kept, PLANTED), strict=True):
            start = 2 * size * at + source.randrange(size)
            start -= start % given.stride
            tokens[start : start + size] = chunk
            planted += 1
        found += len(index.match(SPACE, tokens, given.stride))
        prompts.append(TokenSequence.of(encode_tokens(tokens)))

    def look(space: str) -> Callable[[TokenSequence], object]:
        return lambda prompt: index.match(space, index.decode(prompt.encoded, prompt.count), given.stride)

    return {
        "chunks": len(index),
        "registrations": row.registrations,
        "match_ms": milliseconds(prompts, look(SPACE)),
        "no_space_ms": milliseconds(prompts, look("another")),
        "recall": found / planted,
        "bytes_per_chunk": round(grown / len(index), 1),
        "add_us": round(1e6 * adding / row.registrations, 1),
    }


def beside(given: Given) -> dict[str, Any]:
    """Both loads ask for new prompts, of which nothing is there, one after the other."""
    figures: dict[str, Any] = {}
    with running(serve, given) as (_, endpoint), EngineClient(endpoint) as client:
        for _ in range(200):
            client.noop()
        for name, blends in (("alone", None), ("lookups", False), ("blend_lookups", True)):
            if blends is None:
                figures[name] = round_trips(client)
                continue
            with running(look_up, endpoint, given, blends) as (load, _):
                started = time.monotonic()
                figures[name] = round_trips(client)
                load.send(None)
                figures[name]["per_s"] = round(load.recv() / (time.monotonic() - started), 1)
    return figures


def round_trips(client: EngineClient) -> dict[str, float]:
    taken, end = [], time.monotonic() + BESIDE_SECONDS
    while (started := time.monotonic()) < end:
        client.noop()
        taken.append(1000 * (time.monotonic() - started))
        time.sleep(0.001)
    cuts = quantiles(taken, n=100)
    return {"p50_ms": round(cuts[49], 2), "p99_ms": round(cuts[98], 2)}


@contextmanager
def running(function: Callable[..., None], *arguments: object) -> Iterator[tuple[Connection, Any]]:
    """A process, and what it says first.  It ends when it is asked for the second time, or when its pipe is closed."""
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=function, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours, ours.recv()
    finally:
        ours.close()
        process.join(30.0)


def serve(pipe: Connection, given: Given) -> None:
    values: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": free_port(),
        "chunk_size": given.chunk_tokens,
        "l1_size_gb": 0.125,
        "disable_logging": True,
        "engine_type": ("blend",),
        "offer_settings": {
            "request_module:blend": {"index_chunks": ROWS["compiled"].chunks, "probe_stride": given.stride}
        },
    }
    server = build(ServerSettings(**values), load_plugins(["blend"]))
    server.start()
    try:
        module = server.parts.engine_port.modules["blend"]
        assert isinstance(module, BlendModule)
        with FakeEngine(server.info.engine_endpoint) as engine:
            document = drawn(4 * given.chunk_tokens).tolist()
            engine.store(document)  # what is looked up is of a space that is there
            key = engine.key(document, "known", 0, len(document), of_worker=False)
            engine.scheduler.call(BLEND_LOOKUP, key, 5.0)
            (space,) = module.index._spaces
            for number in range(ROWS["compiled"].chunks - len(module.index)):
                module.index.add(space, drawn(given.chunk_tokens), chunk_hash(number), number, 0)
            pipe.send(server.info.engine_endpoint)
            while not pipe.poll(1.0):
                engine.worker.noop()
    except (EOFError, OSError):
        pass
    finally:
        server.stop(0.0)


def look_up(pipe: Connection, endpoint: str, given: Given, blends: bool) -> None:
    with FakeEngine(endpoint) as engine:
        prompts = [drawn(given.tokens).tolist() for _ in range(8)]
        pipe.send(None)
        count = 0
        while not pipe.poll():
            tokens = prompts[count % len(prompts)]
            tokens[0] = count
            request = f"{blends}-{count}"
            if blends:
                engine.scheduler.call(BLEND_LOOKUP, engine.key(tokens, request, 0, len(tokens), of_worker=False), 5.0)
            else:
                engine.lookup(tokens, request)
            engine.end(request)
            count += 1
        pipe.recv()
        pipe.send(count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", nargs="+", choices=[*ROWS, BESIDE], default=[*ROWS, BESIDE])
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--chunk-tokens", type=int, default=64)
    parser.add_argument("--stride", type=int, default=1)
    asked = parser.parse_args()
    given = Given(asked.tokens, asked.chunk_tokens, asked.stride)
    for name in asked.rows:
        with SPAWN.Pool(1) as pool:
            figures = beside(given) if name == BESIDE else pool.apply(matched, (ROWS[name], given))
        print(json.dumps({"row": name, **given._asdict(), **figures}), flush=True)


if __name__ == "__main__":
    main()
