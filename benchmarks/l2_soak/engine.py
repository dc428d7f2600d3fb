"""One engine under full load, as a process: it asks, reads and checks every byte, stores what is missing, and begins again.

    python -m benchmarks.l2_soak.engine '{"endpoint": ..., "number": 0, ...}'       # see `Orders`

Prints a `Tally` as JSON when its time is over.
"""

from __future__ import annotations

import random
import struct
import sys
import time
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from blake3 import blake3

from benchmarks.l2_soak.recipes import CHUNK_TOKENS
from lmcache_client.errors import LMCacheError
from lmcache_devkit import FakeEngine

LAYERS: Final = 2
DTYPE_BYTES: Final = 4
SKEW: Final = 3
"""Half of all requests are for one eighth of the prompts."""
STEP: Final = np.uint64(0x9E3779B97F4A7C15)
"""Odd, so that no two words of a chunk are equal."""
COMPLAINTS_MAX: Final = 20
TIMEOUT_SECONDS: Final = 120.0


class Orders(msgspec.Struct, frozen=True):
    endpoint: str
    number: int
    seconds: float
    prompts: int
    """All engines ask for the same ones."""
    prompt_chunks: int
    chunk_bytes: int
    requests_min: int
    """To be sent even when the time is over."""


class Tally(msgspec.Struct):
    """Chunks, but for requests and complaints."""

    requests: int = 0
    asked: int = 0
    hit: int = 0
    read: int = 0
    offered: int = 0
    """To be stored: what was not a hit."""
    lost: int = 0
    """Hit, and not there when they were fetched."""
    complaints: list[str] = []

    def complain(self, what: str) -> None:
        if len(self.complaints) < COMPLAINTS_MAX:
            self.complaints.append(what)


class PatternEngine(FakeEngine):
    """Its chunks are made faster than any disk takes them, and no word of one is at the same place in another."""

    def __init__(self, endpoint: str, chunk_bytes: int) -> None:
        hidden = chunk_bytes // (LAYERS * CHUNK_TOKENS * DTYPE_BYTES)
        super().__init__(endpoint, layers=LAYERS, hidden=hidden, timeout_seconds=TIMEOUT_SECONDS)
        if self.layout.payload_bytes != chunk_bytes:
            raise ValueError(f"chunks cannot have {chunk_bytes} bytes; {self.layout.payload_bytes} is nearest")
        self._words = np.arange(self.layout.payload_bytes // 8, dtype=np.uint64) * STEP

    def content(self, tokens: Sequence[int], chunk: int) -> bytes:
        end = (chunk + 1) * self.chunk_tokens
        (seed,) = struct.unpack("<Q", blake3(struct.pack(f"<{end}I", *tokens[:end])).digest(8))
        return (self._words + np.uint64(seed)).tobytes()


def work(orders: Orders) -> Tally:
    """Until the time is over and enough was sent, or the server fails an answer."""
    tally, rng = Tally(), random.Random(orders.number)
    try:
        with PatternEngine(orders.endpoint, orders.chunk_bytes) as engine:
            end = time.monotonic() + orders.seconds
            while time.monotonic() < end or tally.requests < orders.requests_min:
                tally.requests += 1
                prompt = int(orders.prompts * rng.random() ** SKEW)
                _request(engine, prompt, orders, tally)
    except (LMCacheError, AssertionError) as error:
        tally.complain(f"{type(error).__name__}: {error}")
    return tally


def _request(engine: PatternEngine, prompt: int, orders: Orders, tally: Tally) -> None:
    size = engine.chunk_tokens
    tokens = [prompt, *range(orders.prompt_chunks * size - 1)]
    request = f"{orders.number}-{tally.requests}"
    hits = engine.lookup(tokens, request)
    tally.asked += orders.prompt_chunks
    tally.hit += hits
    if hits:
        found = engine.retrieve(tokens, request, 0, hits * size)
        if found is None:
            tally.lost += hits
        else:
            tally.read += len(found)
            wrong = [at for at, data in enumerate(found) if data != engine.content(tokens, at)]
            if wrong or len(found) != hits:
                tally.complain(f"request {request}: {len(found)} of {hits} chunks came, wrong bytes in chunks {wrong}")
    if hits < orders.prompt_chunks:
        tally.offered += orders.prompt_chunks - hits
        if not engine.store(tokens, request, hits * size):
            tally.complain(f"request {request}: a store was not taken")
    engine.end(request)


if __name__ == "__main__":
    done = work(msgspec.json.decode(sys.argv[1], type=Orders))
    print(msgspec.json.encode(done).decode())
