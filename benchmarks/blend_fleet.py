"""How long a coordinator takes to say which chunks of a prompt some server has, by their tokens.

    .venv/bin/python -m benchmarks.blend_fleet [--chunks 1000000] [--members 10] [--tokens 32768] [--chunk-tokens 256]

Runs in this process and prints one JSON line.  Members send pages of their chunks to the view and to a directory of keys, as a
coordinator has them.  Each prompt is new, and half of it are chunks of all members at random offsets.  Times are CPU times of
the thread that answers `POST /directory/blend-lookup`, from the body to the answer, JSON and base64 included, without HTTP.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from array import array
from base64 import b64encode
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median, quantiles
from typing import Any, Final

import psutil

from lmcache_blend.view import BlendView, ViewSettings
from lmcache_core import HashChain, HttpRequest, KeySpace, pack_kv_rank
from lmcache_fleet.placements import Location, Placements, space_number
from lmcache_fleet.tokens import ChunkTokens, tokens_page

PROMPTS: Final = 40
PAGE_CHUNKS: Final = 1000


class Directory:
    """Of keys."""

    def __init__(self) -> None:
        self.placements = Placements()

    def is_there(self, space: KeySpace, hashes: bytes) -> Sequence[bool]:
        ends, _ = self.placements.find(space_number(space.tail), hashes)
        return [end > begin for begin, end in pairwise((0, *ends))]


def chunks_of(space: KeySpace, count: int) -> Iterator[list[ChunkTokens]]:
    """Pages of random ones."""
    for begin in range(0, count, PAGE_CHUNKS):
        yield [
            ChunkTokens(space, os.urandom(32), os.urandom(32), 1 + number, os.urandom(4 * space.chunk_tokens))
            for number in range(begin, min(begin + PAGE_CHUNKS, count))
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=1_000_000)
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--chunk-tokens", type=int, default=256)
    given = parser.parse_args()
    size, source = given.chunk_tokens, random.Random(1)
    space = KeySpace("model", pack_kv_rank(1, 0), 0, "", size, HashChain.BLAKE3, bytes(16))
    view, directory = BlendView(ViewSettings.model_validate({"chunk_size": size})), Directory()
    view.begin(directory.is_there)
    before, taken, kept = psutil.Process().memory_info().rss, 0.0, list[bytes]()
    for member in range(given.members):
        generation = directory.placements.begin(Location(f"server-{member}", 0, "l1"))
        directory.placements.show(generation)
        about = {"instance": f"server-{member}", "incarnation": "1", "source": "l1.tokens"}
        first = 0
        for chunks in chunks_of(space, given.chunks // given.members):
            page = tokens_page(about, first, chunks)
            first = page.end
            started = time.thread_time()
            view.take(page, 0)
            taken += time.thread_time() - started
            directory.placements.add(
                generation, space_number(space.tail), b"".join([each.chunk_hash for each in chunks])
            )
            kept += [each.tokens for each in source.sample(chunks, 10)]
    grown = psutil.Process().memory_info().rss - before - sum(map(len, kept))
    milliseconds, found, planted = [], 0, 0
    for _ in range(PROMPTS):
        tokens = array("I", os.urandom(4 * given.tokens))
        for at in range(given.tokens // (2 * size)):
            start = 2 * size * at + source.randrange(size)
            tokens[start : start + size] = array("I", source.choice(kept))
            planted += 1
        asked: dict[str, Any] = {"tokens_b64": b64encode(tokens.tobytes()).decode(), "model_name": "model"}
        request = HttpRequest({}, {}, {}, json.dumps(asked).encode())
        started = time.thread_time()
        answer = view.routes()[0].answer(request)
        milliseconds.append(1000 * (time.thread_time() - started))
        found += len(answer.body["matches"])
    low, *_, high = quantiles(milliseconds, n=10)
    figures = {
        "compiled": view.compiled,
        "chunks": view.figures()["num_chunks"],
        "members": given.members,
        "tokens": given.tokens,
        "chunk_tokens": size,
        "lookup_ms": {"median": round(median(milliseconds), 2), "p10": round(low, 2), "p90": round(high, 2)},
        "recall": found / planted,
        "bytes_per_chunk": round(grown / given.chunks, 1),
        "take_us_per_chunk": round(1e6 * taken / given.chunks, 1),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
