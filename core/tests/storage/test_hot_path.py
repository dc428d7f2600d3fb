"""A lookup that L1 answers costs the storage layer no step per chunk: counted, not timed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from core.tests.storage.storage_harness import StorageHarness, open_storage, space
from lmcache_core.contracts.storage import Shard

HASHES = [number.to_bytes(32, "big") for number in range(512)]


@pytest.fixture
def harness() -> Iterator[StorageHarness]:
    with open_storage(StorageHarness(slots=1100)) as harness:
        for rank in (0, 1):
            harness.put(*HASHES, into=space(rank))
        harness.settle()
        yield harness


def lines_of_storage(harness: StorageHarness, chunks: int, ranks: tuple[int, ...], way: str) -> int:
    """Lines that run on the storage floor from a lookup to its end."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if "/lmcache_core/storage/" not in frame.f_code.co_filename and "reach.py" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    hashes = HASHES[:chunks]
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        harness.ask(*hashes, shards=tuple(Shard((space(rank),)) for rank in ranks))
        assert harness.answer() == chunks
        for rank in ranks if way == "retrieve" else ():
            references = harness.storage.acquire(rank, "r", space(rank), hashes, 0)
            assert references is not None
            harness.storage.release(references)
        if way == "free":
            harness.storage.free_lookup(b"c", "r", 0, chunks)
        harness.storage.end_lookup(b"c", "r")
    finally:
        sys.settrace(before)
    assert harness.held() == 0
    return count


@pytest.mark.parametrize("way", ["free", "retrieve", "end"])
@pytest.mark.parametrize("ranks", [(0,), (0, 1)])
def test_a_long_prompt_takes_no_more_steps_than_a_short_one(
    harness: StorageHarness, way: str, ranks: tuple[int, ...]
) -> None:
    assert lines_of_storage(harness, 512, ranks, way) == lines_of_storage(harness, 4, ranks, way) > 20
