"""How long it takes to find stored chunks in a prompt by their tokens, and what the index takes.

    .venv/bin/python -m benchmarks.blend_match [--chunks 1000000] [--tokens 32768] [--chunk-tokens 64] [--stride 1]

Runs in this process and prints one JSON line.  The index is filled with twice as many chunks as it keeps; every prompt is new,
of random tokens with kept chunks planted at random offsets.  Times are CPU times, with decoding from the wire form.  Memory is
what the process grew by, with every entry used.  A prompt of a space that the index does not know is what no match costs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from array import array
from collections.abc import Callable
from hashlib import blake2b
from statistics import median, quantiles
from typing import Final

import psutil

from lmcache_blend_index import ChunkIndex
from lmcache_client.engine_key import TokenSequence, encode_tokens

PROMPTS: Final = 40
PLANTED: Final = 16
"""In each prompt."""
SPACE: Final = "space"


def drawn(count: int) -> list[int]:
    return array("I", os.urandom(4 * count)).tolist()


def milliseconds(prompts: list[TokenSequence], look: Callable[[list[int]], object]) -> dict[str, float]:
    taken = []
    for prompt in prompts:
        started = time.thread_time()
        look(prompt.decode())
        taken.append(1000 * (time.thread_time() - started))
    low, *_, high = quantiles(taken, n=10)
    return {"median": round(median(taken), 2), "p10": round(low, 2), "p90": round(high, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=1_000_000)
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--chunk-tokens", type=int, default=64)
    parser.add_argument("--stride", type=int, default=1)
    given = parser.parse_args()
    size, process = given.chunk_tokens, psutil.Process()
    before = process.memory_info().rss
    index = ChunkIndex(size, given.chunks)
    kept: list[array[int]] = []
    added = 2 * given.chunks
    started = time.thread_time()
    for number in range(added):
        tokens = drawn(size)
        index.add(SPACE, tokens, blake2b(number.to_bytes(8, "little"), digest_size=32).digest(), number, 0)
        if number >= given.chunks and number % (1 + given.chunks // 1000) == 0:
            kept.append(array("I", tokens))
    add_us = 1e6 * (time.thread_time() - started) / added
    grown = process.memory_info().rss - before
    source, found, planted, prompts = random.Random(1), 0, 0, []
    for _ in range(PROMPTS):
        tokens = drawn(given.tokens)
        slots = source.sample(range(given.tokens // (2 * size)), PLANTED)
        for at, chunk in zip(slots, source.sample(kept, PLANTED), strict=True):
            start = 2 * size * at + source.randrange(size)
            start -= start % given.stride
            tokens[start : start + size] = chunk.tolist()
            planted += 1
        found += len(index.match(SPACE, tokens, given.stride))
        prompts.append(TokenSequence.of(encode_tokens(tokens)))
    figures = {
        "chunks": len(index),
        "tokens": given.tokens,
        "chunk_tokens": size,
        "stride": given.stride,
        "match_ms": milliseconds(prompts, lambda tokens: index.match(SPACE, tokens, given.stride)),
        "no_space_ms": milliseconds(prompts, lambda tokens: index.match("another", tokens, given.stride)),
        "recall": found / planted,
        "bytes_per_chunk": round(grown / len(index), 1),
        "add_us": round(add_us, 1),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
