"""What simulated engines share: prompts, names, the time that a copy takes, and claims of slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from blake3 import blake3

from lmcache_client.engine_key import encode_tokens
from lmcache_client.layout import ObjectLayout
from lmcache_core import EngineKey
from lmcache_core.model.keys import pack_kv_rank
from tests.simulation.oracle import PAYLOAD_BYTES, Holder, Oracle, content
from tests.simulation.runtime import Process, Runtime

ENDPOINT: Final = "tcp://127.0.0.1:5555"
CHUNK_TOKENS: Final = 16
MODEL: Final = "m"
SALTS: Final = ("", "", "", "tenant")
PROMPTS: Final = tuple(
    tuple(range(CHUNK_TOKENS * shared))
    + tuple(1000 * (family + 1) + at for at in range(CHUNK_TOKENS * (chunks - shared)))
    for family, (shared, chunks) in enumerate(((0, 4), (0, 2), (1, 3), (2, 4), (0, 1), (0, 5)))
)
"""Few, with common beginnings, so that engines meet at the same chunks."""
HEARTBEAT_SECONDS: Final = 0.4
STEADY_SECONDS: Final = 1.3
"""Longest between two pings of an engine that is not disturbed: both its questions may time out meanwhile."""
TIMEOUT_SECONDS: Final = 30.0
FREEZES_PER_COPY: Final = 0.006
FREEZES_PER_LOAD: Final = 0.1
"""More, because a node loads one thing at a time, and only what it hits."""
LAYOUT: Final = ObjectLayout(1, 1, CHUNK_TOKENS, PAYLOAD_BYTES // CHUNK_TOKENS // 4, "float32")


@lru_cache(4096)
def chunk_hashes(tokens: tuple[int, ...]) -> tuple[bytes, ...]:
    """By the documented chain (docs/internals/engine-protocol.md)."""
    previous = blake3(bytes(8) + bytes(4)).digest()
    hashes = []
    for begin in range(0, len(tokens) // CHUNK_TOKENS * CHUNK_TOKENS, CHUNK_TOKENS):
        chunk = b"".join(token.to_bytes(4, "big") for token in tokens[begin : begin + CHUNK_TOKENS])
        previous = blake3(previous + chunk).digest()
        hashes.append(previous)
    return tuple(hashes)


class Shard(NamedTuple):
    """Which part of a model's KV a worker has."""

    model: str = MODEL
    world_size: int = 1
    worker_id: int = 0

    @property
    def rank(self) -> int:
        return pack_kv_rank(self.world_size, self.worker_id)

    def content(self, salt: str, chunk_hash: bytes) -> bytes:
        return content(self.model, salt, chunk_hash, self.rank)

    def key(self, tokens: tuple[int, ...], salt: str, request: str, begin: int, end: int) -> EngineKey:
        """Of a transfer."""
        encoded = encode_tokens(tokens)
        return EngineKey(self.model, self.world_size, self.worker_id, encoded, begin, end, request, salt, None, 1)

    def lookup_key(self, tokens: tuple[int, ...], salt: str, request: str, end: int) -> EngineKey:
        """Of a lookup, which is about all shards."""
        return EngineKey(self.model, self.world_size, None, encode_tokens(tokens), 0, end, request, salt, None, 1)


class World:
    """What engines share: the scheduler, the oracle, the server that runs now."""

    def __init__(self, runtime: Runtime, oracle: Oracle, on_copy: Callable[[Process], None]) -> None:
        """`on_copy` is called now and then while a process copies into or out of a slot; it must not block."""
        self.runtime = runtime
        self._on_copy = on_copy
        self.oracle = oracle
        self.calm = False
        """No request begins any more."""
        self.ended = 0
        """Requests that have come to their end."""
        self.answered = 0
        self.read: Counter[str] = Counter()
        """Chunks that engines have read, by kind of engine."""

    def prompt(self) -> tuple[int, ...]:
        """Often the one that all ask for at the moment."""
        if self.runtime.random.random() < 0.4:
            return PROMPTS[int(self.runtime.now) % len(PROMPTS)]
        return self.runtime.random.choice(PROMPTS)

    def copying(self, process: Process, freezes: float = FREEZES_PER_COPY) -> None:
        """The middle of a copy: a freeze hurts most now."""
        if not self.calm and self.runtime.random.random() < freezes:
            self._on_copy(process)
        self.pause()

    def pause(self) -> None:
        """As long as the copy of a chunk takes, and now and then much longer."""
        dice = self.runtime.random
        self.runtime.sleep(dice.expovariate(1 / 0.02) * (20 if dice.random() < 0.12 else 1))


class Claimed:
    """While an engine may touch these slots."""

    def __init__(self, oracle: Oracle, segment: str, offsets: Sequence[int], holder: Holder, writes: bool) -> None:
        self._ledger, self._segment, self._offsets, self._holder, self._writes = (
            oracle,
            segment,
            offsets,
            holder,
            writes,
        )

    def __enter__(self) -> None:
        for offset in self._offsets:
            self._ledger.claim(self._segment, offset, self._holder, writes=self._writes)

    def __exit__(self, *error: object) -> None:
        for offset in self._offsets:
            self._ledger.release(self._segment, offset, self._holder)
