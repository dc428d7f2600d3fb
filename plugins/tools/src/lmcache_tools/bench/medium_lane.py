"""Moves objects with the I/O engine alone: what an adapter on the same medium can reach at best."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from lmcache_tools.bench.io_engine import IoEngine
from lmcache_tools.bench.lane import Ended, Step
from lmcache_tools.bench.medium import Medium
from lmcache_tools.bench.memory import BenchMemory

_CLOSE_SECONDS: Final = 10.0


class MediumLane:
    """Without keys, headers, digests, names or anything else that a cache needs."""

    def __init__(self, name: str, medium: Medium, engine: IoEngine) -> None:
        self.name: Final = name
        self._medium = medium
        self._engine = engine
        self._lengths: dict[int, int] = {}

    def start(self, steps: Sequence[Step]) -> None:
        self._lengths.update((step.token, step.buffer.length) for step in steps)
        self._engine.submit([self._medium.operation(step) for step in steps])

    def fileno(self) -> int:
        return self._engine.fileno()

    def ended(self) -> Sequence[Ended]:
        return [Ended(token, _fault(result, self._lengths.pop(token))) for token, result, _ in self._engine.answers()]

    def clear(self) -> None:
        self._medium.clear()


@contextmanager
def medium_lane(name: str, medium: Medium, engine: IoEngine, memory: BenchMemory) -> Iterator[MediumLane]:
    """Takes the engine over.  The medium and `memory`, which is borrowed to it, must outlive it."""
    try:
        medium.register(engine)
        yield MediumLane(name, medium, engine)
    finally:
        if not engine.close(_CLOSE_SECONDS):
            memory.is_borrowed = True


def _fault(result: int, length: int) -> str | None:
    if result == length:
        return None
    return os.strerror(-result) if result < 0 else f"{result} of {length} bytes were moved"
