"""A trace against an adapter: the counts follow from the trace, and no wrong byte goes unseen."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lmcache_core import L2Adapter
from lmcache_core.builtin.memory_l2 import MemoryAdapter, MemorySettings
from lmcache_devkit import BorrowedMemory, Fault, FaultInjectAdapter, FaultPlan, L2Driver, TracePlayer
from lmcache_devkit.borrowed_memory import adapter_context, payload_of

REQUESTS: tuple[list[int], ...] = ([0, 1, 2], [0, 1, 2], [0, 1, 7, 8], [9], [0, 1, 7, 8, 10, 11], [])


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    lines = [{"timestamp": n, "input_length": 512 * len(ids), "hash_ids": ids} for n, ids in enumerate(REQUESTS)]
    file = tmp_path / "trace.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


@pytest.fixture
def memory() -> BorrowedMemory:
    return BorrowedMemory(4 * 2**20)


@pytest.fixture
def adapter(memory: BorrowedMemory) -> Iterator[L2Adapter]:
    adapter = MemoryAdapter(MemorySettings(), adapter_context(memory))
    yield adapter
    adapter.close(5)


def test_what_was_there_is_loaded_and_the_rest_is_stored(
    trace: Path, adapter: L2Adapter, memory: BorrowedMemory
) -> None:
    replay = TracePlayer(trace).play_adapter(L2Driver(adapter), memory)
    assert (replay.requests, replay.blocks) == (6, 17)
    assert replay.found == replay.loaded == 0 + 3 + 2 + 0 + 4
    assert replay.stored == 3 + 0 + 2 + 1 + 2
    assert (replay.wrong, replay.missed, replay.refused) == (0, 0, 0)


def test_no_more_requests_are_played_than_wanted(trace: Path, adapter: L2Adapter, memory: BorrowedMemory) -> None:
    player = TracePlayer(trace, max_requests=2, payload_bytes=100)
    assert [request.blocks for request in player.requests()] == [(0, 1, 2), (0, 1, 2)]
    replay = player.play_adapter(L2Driver(adapter), memory)
    assert (replay.requests, replay.found, replay.stored) == (2, 3, 3)


def test_torn_loads_are_missed_and_never_wrong(trace: Path, adapter: L2Adapter, memory: BorrowedMemory) -> None:
    plan = FaultPlan({"load": {Fault.TORN: 0.5}}, seed=3)
    faulty = FaultInjectAdapter(adapter_context(memory), adapter, plan)
    driver = L2Driver(faulty)
    replays = [TracePlayer(trace).play_adapter(driver, memory) for _ in range(3)]
    faulty.close(5)
    assert sum(replay.missed for replay in replays) > 0
    assert sum(replay.loaded for replay in replays) > 0
    assert [replay.wrong for replay in replays] == [0, 0, 0]


class Forgetful:
    """A target of one's own: gives the bytes of the wrong block, or none."""

    def __init__(self) -> None:
        self.blocks: set[int] = set()

    def found(self, blocks: Sequence[int]) -> int:
        return next((at for at, block in enumerate(blocks) if block not in self.blocks), len(blocks))

    def load(self, blocks: Sequence[int]) -> Sequence[bytes | None]:
        return [None if block == 0 else payload_of(block + (block == 1), 100) for block in blocks]

    def store(self, blocks: Sequence[int], payloads: Sequence[bytes]) -> int:
        assert [payload_of(block, 100) for block in blocks] == list(payloads)
        self.blocks.update(blocks[:-1])
        return len(blocks[:-1])


def test_any_target_can_be_played_against_and_wrong_bytes_are_counted(trace: Path) -> None:
    replay = TracePlayer(trace, payload_bytes=100).play(Forgetful())
    assert replay.found == replay.missed + replay.wrong + replay.loaded == 2 + 2 + 3
    assert (replay.missed, replay.wrong, replay.loaded) == (3, 3, 1)
    assert replay.stored + replay.refused == 17 - replay.found
