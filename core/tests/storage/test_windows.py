"""Shards of which a prefix needs only the last few chunks (sliding windows, recurrent states)."""

from __future__ import annotations

import pytest

from core.tests.storage.house import CHUNKS, WORKER, House, space
from lmcache_core.contracts.storage import Shard
from lmcache_core.l1.logs import Accessed

FULL_AND_WINDOW = (Shard((space(),)), Shard((space(1),), window=2))


def loaded_chunks(house: House, rank: int) -> list[int]:
    """Chunks of a shard that adapters are asked to load."""
    keys = [key for _, job in house.jobs("load") for key in job.keys]
    return [CHUNKS.index(key.chunk_hash) for key in keys if key.space == space(rank).space]


def test_only_the_window_must_be_there_and_is_held(house: House) -> None:
    house.put(*CHUNKS)
    house.put(*CHUNKS[6:], into=space(1))
    house.settle()
    house.ask(*CHUNKS, shards=FULL_AND_WINDOW)
    assert house.answer() == 8
    assert house.held() == 8 + 2


def test_what_lies_in_front_of_the_window_is_not_held(house: House) -> None:
    house.put(*CHUNKS)
    house.put(*CHUNKS, into=space(1))
    house.settle()
    house.cache.take_access_log()
    house.ask(*CHUNKS, shards=FULL_AND_WINDOW)
    assert house.answer() == 8
    assert house.held() == 8 + 2
    notes = [note for note in house.cache.take_access_log() if isinstance(note, Accessed)]
    assert [len(note.slots) for note in notes] == [8, 2], "nor is it a hit"


def test_the_hit_is_the_longest_prefix_whose_window_is_there(house: House) -> None:
    house.put(*CHUNKS)
    house.put(*CHUNKS[2:5], *CHUNKS[7:], into=space(1))
    house.settle()
    for adapter in house.adapters:
        adapter.objects.clear()
    house.ask(*CHUNKS, shards=FULL_AND_WINDOW)
    house.settle()
    assert house.answer() == 5
    assert house.held() == 5 + 2


def test_only_the_window_is_loaded(house: House) -> None:
    house.put_in_l2(*CHUNKS)
    house.put_in_l2(*CHUNKS, into=space(1))
    house.ask(*CHUNKS, shards=FULL_AND_WINDOW)
    house.turn()
    house.finish("lookup")
    assert (loaded_chunks(house, 0), loaded_chunks(house, 1)) == ([*range(8)], [6, 7])
    house.settle()
    assert house.answer() == 8


def test_a_shorter_prefix_needs_another_window_and_loads_it(house: House) -> None:
    house.put_in_l2(*CHUNKS)
    house.put_in_l2(*CHUNKS, into=space(1))
    house.ask(*CHUNKS, shards=FULL_AND_WINDOW)
    house.turn()
    house.finish("lookup")
    ((adapter, job),) = house.jobs("load")
    adapter.finish_partly(job, [key.chunk_hash != CHUNKS[4] for key in job.keys])
    house.turn()
    assert house.answer() is None
    assert (loaded_chunks(house, 0), loaded_chunks(house, 1)) == ([], [2, 3])
    house.settle()
    assert house.answer() == 4
    assert house.held() == 4 + 2
    house.storage.end_lookup(b"c", "r")
    assert (house.held(), house.pins()) == (0, 0)


def test_the_worker_of_a_window_takes_over_what_is_held(house: House) -> None:
    house.put(*CHUNKS)
    house.put(*CHUNKS[5:], into=space(1))
    house.settle()
    house.ask(*CHUNKS, shards=FULL_AND_WINDOW)
    assert house.answer() == 8
    whole = house.storage.acquire(WORKER, "r", space(), CHUNKS, 0)
    window = house.storage.acquire(WORKER, "r", space(1), CHUNKS[5:], 5)
    assert whole is not None
    assert window is not None
    house.storage.release(whole)
    house.storage.release(window)
    assert house.held() == 0


def test_free_means_chunks_of_the_prompt(house: House) -> None:
    house.put(*CHUNKS)
    house.put(*CHUNKS, into=space(1))
    house.settle()
    house.ask(*CHUNKS, shards=FULL_AND_WINDOW)
    house.storage.free_lookup(b"c", "r", 0, 7)
    assert house.held() == 1 + 1
    house.storage.free_lookup(b"c", "r", 7, 100)
    assert house.held() == 0


def test_a_window_of_everything_is_no_window(house: House) -> None:
    house.put(*CHUNKS[:5])
    house.ask(*CHUNKS[:5], shards=(Shard((space(),), window=99),))
    assert house.answer() == 5
    house.settle()
    assert house.held() == 5


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_is_at_least_one_chunk_long(house: House, window: int) -> None:
    with pytest.raises(ValueError, match="at least one chunk"):
        house.ask(*CHUNKS, shards=(Shard((space(),), window=window),))
    assert house.storage.lookups_open == 0
