"""Shards of which a prefix needs only the last few chunks (sliding windows, recurrent states)."""

from __future__ import annotations

import pytest

from core.tests.storage.storage_harness import CHUNKS, WORKER, StorageHarness, space
from lmcache_core.contracts.storage import Shard
from lmcache_core.l1.index import Accessed

FULL_AND_WINDOW = (Shard((space(),)), Shard((space(1),), window=2))


def loaded_chunks(harness: StorageHarness, rank: int) -> list[int]:
    """Chunks of a shard that adapters are asked to load."""
    keys = [key for _, job in harness.jobs("load") for key in job.keys]
    return [CHUNKS.index(key.chunk_hash) for key in keys if key.space == space(rank).space]


def test_only_the_window_must_be_there_and_is_held(harness: StorageHarness) -> None:
    harness.put(*CHUNKS)
    harness.put(*CHUNKS[6:], into=space(1))
    harness.settle()
    harness.ask(*CHUNKS, shards=FULL_AND_WINDOW)
    assert harness.answer() == 8
    assert harness.held() == 8 + 2


def test_what_lies_in_front_of_the_window_is_not_held(harness: StorageHarness) -> None:
    harness.put(*CHUNKS)
    harness.put(*CHUNKS, into=space(1))
    harness.settle()
    harness.cache.take_access_log()
    harness.ask(*CHUNKS, shards=FULL_AND_WINDOW)
    assert harness.answer() == 8
    assert harness.held() == 8 + 2
    entries = [entry for entry in harness.cache.take_access_log() if isinstance(entry, Accessed)]
    assert [len(entry.slots) for entry in entries] == [8, 2], "nor is it a hit"


def test_the_hit_is_the_longest_prefix_whose_window_is_there(harness: StorageHarness) -> None:
    harness.put(*CHUNKS)
    harness.put(*CHUNKS[2:5], *CHUNKS[7:], into=space(1))
    harness.settle()
    for adapter in harness.adapters:
        adapter.objects.clear()
    harness.ask(*CHUNKS, shards=FULL_AND_WINDOW)
    harness.settle()
    assert harness.answer() == 5
    assert harness.held() == 5 + 2


def test_only_the_window_is_loaded(harness: StorageHarness) -> None:
    harness.put_in_l2(*CHUNKS)
    harness.put_in_l2(*CHUNKS, into=space(1))
    harness.ask(*CHUNKS, shards=FULL_AND_WINDOW)
    harness.turn()
    harness.finish("lookup")
    assert (loaded_chunks(harness, 0), loaded_chunks(harness, 1)) == ([*range(8)], [6, 7])
    harness.settle()
    assert harness.answer() == 8


def test_a_shorter_prefix_needs_another_window_and_loads_it(harness: StorageHarness) -> None:
    harness.put_in_l2(*CHUNKS)
    harness.put_in_l2(*CHUNKS, into=space(1))
    harness.ask(*CHUNKS, shards=FULL_AND_WINDOW)
    harness.turn()
    harness.finish("lookup")
    ((adapter, job),) = harness.jobs("load")
    adapter.finish_partly(job, [key.chunk_hash != CHUNKS[4] for key in job.keys])
    harness.turn()
    assert harness.answer() is None
    assert (loaded_chunks(harness, 0), loaded_chunks(harness, 1)) == ([], [2, 3])
    harness.settle()
    assert harness.answer() == 4
    assert harness.held() == 4 + 2
    harness.storage.end_lookup(b"c", "r")
    assert (harness.held(), harness.pins()) == (0, 0)


def test_the_worker_of_a_window_takes_over_what_is_held(harness: StorageHarness) -> None:
    harness.put(*CHUNKS)
    harness.put(*CHUNKS[5:], into=space(1))
    harness.settle()
    harness.ask(*CHUNKS, shards=FULL_AND_WINDOW)
    assert harness.answer() == 8
    whole = harness.storage.acquire(WORKER, "r", space(), CHUNKS, 0)
    window = harness.storage.acquire(WORKER, "r", space(1), CHUNKS[5:], 5)
    assert whole is not None
    assert window is not None
    harness.storage.release(whole)
    harness.storage.release(window)
    assert harness.held() == 0


def test_free_means_chunks_of_the_prompt(harness: StorageHarness) -> None:
    harness.put(*CHUNKS)
    harness.put(*CHUNKS, into=space(1))
    harness.settle()
    harness.ask(*CHUNKS, shards=FULL_AND_WINDOW)
    harness.storage.free_lookup(b"c", "r", 0, 7)
    assert harness.held() == 1 + 1
    harness.storage.free_lookup(b"c", "r", 7, 100)
    assert harness.held() == 0


def test_a_window_of_everything_is_not_a_window(harness: StorageHarness) -> None:
    harness.put(*CHUNKS[:5])
    harness.ask(*CHUNKS[:5], shards=(Shard((space(),), window=99),))
    assert harness.answer() == 5
    harness.settle()
    assert harness.held() == 5


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_is_at_least_one_chunk_long(harness: StorageHarness, window: int) -> None:
    with pytest.raises(ValueError, match="at least one chunk"):
        harness.ask(*CHUNKS, shards=(Shard((space(),), window=window),))
    assert harness.storage.lookups_open == 0
