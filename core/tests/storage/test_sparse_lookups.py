"""Lookups of any chunks: no gap ends them."""

from __future__ import annotations

import pytest

from core.tests.storage.house import CHUNKS, LOOKUP_TIMEOUT, WORKER, House, space
from lmcache_core.contracts.storage import Shard, SparseLookupRequest
from lmcache_core.model.results import Bitmap

BOTH = (Shard((space(),)), Shard((space(1),)))


def test_every_chunk_has_its_own_outcome(house: House) -> None:
    house.put(CHUNKS[1], CHUNKS[4])
    house.put_in_l2(CHUNKS[6])
    house.adapter.objects = {k: v for k, v in house.adapter.objects.items() if v[4096:4128] == CHUNKS[6]}
    house.put(CHUNKS[1], CHUNKS[4])
    house.settle()
    house.ask_sparse(*CHUNKS)
    house.settle()
    assert house.places() == [1, 4, 6]
    assert house.places() == [], "given once"
    assert house.held() == 3
    house.storage.end_lookup(b"c", "r")
    assert (house.held(), house.pins()) == (0, 0)


def test_all_that_is_missing_is_asked_for_at_once(house: House) -> None:
    for rank in (0, 1):
        house.put_in_l2(*CHUNKS, into=space(rank))
    house.ask_sparse(*CHUNKS[::2], shards=BOTH)
    house.turn()
    assert len(house.jobs("lookup")) == 1
    house.finish("lookup")
    assert len(house.jobs("load")) == 1
    house.settle()
    assert house.places() == [0, 1, 2, 3]
    assert house.held() == 8


def test_a_chunk_counts_only_when_every_shard_has_it(house: House) -> None:
    house.put_in_l2(*CHUNKS[:5])
    house.put_in_l2(*CHUNKS[3:], into=space(1))
    house.ask_sparse(*CHUNKS, shards=BOTH)
    house.turn()
    house.finish("lookup")
    assert sum(len(job.keys) for _, job in house.jobs("load")) == 4, "and nothing else is loaded"
    house.settle()
    assert house.places() == [3, 4]
    assert house.held() == 4


def test_a_load_that_fails_costs_its_chunk_and_no_other(house: House) -> None:
    for rank in (0, 1):
        house.put_in_l2(*CHUNKS, into=space(rank))
    house.ask_sparse(*CHUNKS, shards=BOTH)
    house.turn()
    house.finish("lookup")
    ((adapter, job),) = house.jobs("load")
    adapter.finish_partly(job, [key.chunk_hash != CHUNKS[2] or key.space != space().space for key in job.keys])
    house.settle()
    assert house.places() == [0, 1, 3, 4, 5, 6, 7]
    assert house.held() == 14, "the other shard's copy is let go"


def test_one_chunk_at_several_places_is_one_object_and_read_as_often(house: House) -> None:
    house.put_in_l2(*CHUNKS[:2])
    house.ask_sparse(CHUNKS[0], CHUNKS[1], CHUNKS[0], CHUNKS[7])
    house.settle()
    assert house.places() == [0, 1, 2]
    assert house.cache.objects == 2
    for _ in range(2):
        assert house.cache.contents.state_counts().held == 2
        hold = house.storage.acquire(WORKER, "r", space(), [CHUNKS[0]], 0)
        assert hold is not None
        house.storage.release(hold)
    assert house.held() == 1
    house.storage.end_lookup(b"c", "r")
    assert house.held() == 0


def test_workers_take_chunks_in_any_order_for_all_readers(house: House) -> None:
    house.put(*CHUNKS)
    house.settle()
    house.ask_sparse(*CHUNKS[:4], readers=2)
    assert house.places() == [0, 1, 2, 3]
    for chunks in (CHUNKS[2:4], CHUNKS[:2], tuple(reversed(CHUNKS[:4]))):
        assert house.held() > 0
        hold = house.storage.acquire(WORKER, "r", space(), chunks, 100)
        assert hold is not None
        house.storage.release(hold)
    assert house.held() == 0


def test_free_is_by_place(house: House) -> None:
    house.put(*CHUNKS)
    house.settle()
    house.ask_sparse(*CHUNKS[4:], CHUNKS[4])
    house.storage.free_lookup(b"c", "r", 0, 2)
    assert house.held() == 3, "the first chunk is to be read at another place, too"
    house.storage.free_lookup(b"c", "r", 0, 2)
    assert house.held() == 3
    house.storage.free_lookup(b"c", "r", 2, 5)
    assert house.held() == 0


def test_who_waits_is_told_the_places(house: House) -> None:
    house.put_in_l2(*CHUNKS[:3])
    heard: list[Bitmap] = []

    def hear(found: Bitmap) -> bool:
        heard.append(found)
        return True

    house.ask_sparse(*CHUNKS)
    house.storage.on_sparse_lookup(b"c", "r", hear)
    house.settle()
    house.storage.on_sparse_lookup(b"c", "r", hear)
    house.ask_sparse(*CHUNKS, request="other")
    house.storage.on_sparse_lookup(b"c", "other", hear)
    house.storage.end_lookup(b"c", "other")
    assert heard == [Bitmap(8, [0, 1, 2]), Bitmap(0), Bitmap(0)]


def test_at_its_deadline_it_is_answered_with_what_is_there(house: House) -> None:
    house.put_in_l2(*CHUNKS)
    house.put(CHUNKS[5])
    house.ask_sparse(*CHUNKS)
    house.turn()
    house.finish("lookup")
    house.pass_time(LOOKUP_TIMEOUT)
    assert house.places() == [5]


def test_the_two_kinds_do_not_answer_for_each_other_and_replace_each_other(house: House) -> None:
    house.put(*CHUNKS)
    house.settle()
    house.ask_sparse(*CHUNKS[:3])
    assert house.answer() == 0
    assert house.places() == [0, 1, 2]
    house.ask(*CHUNKS[:5])
    assert house.places() == []
    assert (house.answer(), house.held()) == (5, 5)


def test_without_shards_or_chunks_nothing_is_found(house: House) -> None:
    house.ask_sparse()
    assert house.places() == []
    house.storage.lookup_sparse(SparseLookupRequest(b"c", "r", (), CHUNKS, 1))
    assert house.places() == []
    assert house.held() == 0


def test_windows_have_no_meaning_here(house: House) -> None:
    with pytest.raises(ValueError, match="without"):
        house.ask_sparse(*CHUNKS, shards=(Shard((space(),), window=2),))


def test_a_chunk_that_is_asked_for_twice_is_loaded_once_and_nothing_is_tried_again(house: House) -> None:
    house.put_in_l2(*CHUNKS[:2])
    house.ask_sparse(CHUNKS[0], CHUNKS[1], CHUNKS[0])
    house.turn()
    house.finish("lookup")
    ((_, job),) = house.jobs("load")
    assert [key.chunk_hash for key in job.keys] == list(CHUNKS[:2])
    patience = house.prefetch._timeout_seconds()
    assert patience == LOOKUP_TIMEOUT, "its thread sleeps until the load is answered"
    house.settle()
    assert house.places() == [0, 1, 2]
    house.storage.end_lookup(b"c", "r")
    assert (house.held(), house.pins()) == (0, 0)
