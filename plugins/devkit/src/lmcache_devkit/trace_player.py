"""Plays a recorded trace of requests against a cache, and checks every byte that comes back.

A trace is a file of JSON lines, one request each, with `timestamp` (ms), `input_length` (tokens) and `hash_ids`: the
numbers of its blocks of tokens, equal where a whole prefix is equal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from lmcache_core.contracts.l1_memory import BorrowedBuffer
from lmcache_core.model.keys import KeySpace, ObjectKey
from lmcache_core.model.object_header import HEADER_BYTES, seal
from lmcache_core.model.results import Outcome
from lmcache_devkit.borrowed_memory import SPACE, BorrowedMemory, payload_of
from lmcache_devkit.l2_driver import L2Driver

BATCH_MAX = 64


class TracedRequest(NamedTuple):
    timestamp_ms: float
    input_tokens: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Replay:
    """What came of a trace.  Blocks are counted each time they are asked for."""

    requests: int
    blocks: int
    found: int
    """Were there, as the leading part of their request."""
    loaded: int
    """Came back with the right bytes."""
    wrong: int
    """Came back with others.  Never a matter of chance."""
    missed: int
    """Were found, and did not come back."""
    stored: int
    refused: int
    """Were not there, and were not taken."""


class TraceTarget(Protocol):
    """What a trace is played against.  Blocks are numbers, and their right bytes follow from them."""

    def found(self, blocks: Sequence[int]) -> int:
        """How many of them are there, from the first on."""

    def load(self, blocks: Sequence[int]) -> Sequence[bytes | None]:
        """Their bytes; None for one that does not come."""

    def store(self, blocks: Sequence[int], payloads: Sequence[bytes]) -> int:
        """Keep them.  How many were taken."""


class AdapterTarget:
    """An L2 adapter as a target.  Its buffers are borrowed once and used again.  One thread."""

    def __init__(self, driver: L2Driver, memory: BorrowedMemory, payload_bytes: int, space: KeySpace = SPACE) -> None:
        self._driver = driver
        self._space = space
        self._buffers = [memory.lend(HEADER_BYTES + payload_bytes) for _ in range(BATCH_MAX)]

    def found(self, blocks: Sequence[int]) -> int:
        there = self._driver.has(*map(self._key, blocks))
        return next((at for at, outcome in enumerate(there) if outcome is not Outcome.DONE), len(there))

    def load(self, blocks: Sequence[int]) -> Sequence[bytes | None]:
        loaded: list[bytes | None] = []
        for items in self._batches(blocks):
            outcomes = self._driver.verified_load(*items)
            for (_, buffer), outcome in zip(items, outcomes, strict=True):
                loaded.append(bytes(buffer.view[HEADER_BYTES:]) if outcome is Outcome.DONE else None)
        return loaded

    def store(self, blocks: Sequence[int], payloads: Sequence[bytes]) -> int:
        left = iter(payloads)
        taken = 0
        for items in self._batches(blocks):
            for key, buffer in items:
                buffer.view[HEADER_BYTES:] = next(left)
                seal(buffer.view, key, created_ns=1)
            taken += self._driver.store(*items).count(Outcome.DONE)
        return taken

    def _key(self, block: int) -> ObjectKey:
        return ObjectKey(self._space, block.to_bytes(32, "little"))

    def _batches(self, blocks: Sequence[int]) -> Iterator[list[tuple[ObjectKey, BorrowedBuffer]]]:
        for at in range(0, len(blocks), BATCH_MAX):
            yield list(zip(map(self._key, blocks[at : at + BATCH_MAX]), self._buffers, strict=False))


class TracePlayer:
    """Request by request: look up, load what is there, store the rest."""

    def __init__(self, path: Path | str, *, payload_bytes: int = 4096, max_requests: int | None = None) -> None:
        self._path = Path(path)
        self._payload_bytes = payload_bytes
        self._max_requests = max_requests

    def requests(self) -> Iterator[TracedRequest]:
        """The requests of the trace, as far as they are played."""
        with self._path.open() as lines:
            for number, line in enumerate(lines):
                if number == self._max_requests:
                    return
                entry = json.loads(line)
                yield TracedRequest(entry["timestamp"], entry["input_length"], tuple(entry["hash_ids"]))

    def play(self, target: TraceTarget) -> Replay:
        requests = blocks = found = loaded = wrong = missed = stored = refused = 0
        for request in self.requests():
            requests += 1
            blocks += len(request.blocks)
            hits = target.found(request.blocks)
            found += hits
            for block, payload in zip(request.blocks[:hits], target.load(request.blocks[:hits]), strict=True):
                right = payload == self._payload(block)
                loaded += right
                missed += payload is None
                wrong += payload is not None and not right
            rest = request.blocks[hits:]
            taken = target.store(rest, [self._payload(block) for block in rest])
            stored += taken
            refused += len(rest) - taken
        return Replay(requests, blocks, found, loaded, wrong, missed, stored, refused)

    def play_adapter(self, driver: L2Driver, memory: BorrowedMemory) -> Replay:
        """Against an adapter that was opened with this memory; it lends 64 objects of it."""
        return self.play(AdapterTarget(driver, memory, self._payload_bytes))

    def _payload(self, block: int) -> bytes:
        return payload_of(block, self._payload_bytes)
