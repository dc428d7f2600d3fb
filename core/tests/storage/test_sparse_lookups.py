"""Lookups of any chunks: no gap ends them."""

from __future__ import annotations

import pytest

from core.tests.storage.storage_harness import CHUNKS, LOOKUP_TIMEOUT, WORKER, StorageHarness, space
from lmcache_core.contracts.storage import Shard, SparseLookupRequest
from lmcache_core.model.results import Bitmap

BOTH = (Shard((space(),)), Shard((space(1),)))


def test_every_chunk_has_its_own_outcome(harness: StorageHarness) -> None:
    harness.put(CHUNKS[1], CHUNKS[4])
    harness.put_in_l2(CHUNKS[6])
    harness.adapter.objects = {k: v for k, v in harness.adapter.objects.items() if v[4096:4128] == CHUNKS[6]}
    harness.put(CHUNKS[1], CHUNKS[4])
    harness.settle()
    harness.ask_sparse(*CHUNKS)
    harness.settle()
    assert harness.places() == [1, 4, 6]
    assert harness.places() == [], "given once"
    assert harness.held() == 3
    harness.storage.end_lookup(b"c", "r")
    assert (harness.held(), harness.pins()) == (0, 0)


def test_all_that_is_missing_is_asked_for_at_once(harness: StorageHarness) -> None:
    for rank in (0, 1):
        harness.put_in_l2(*CHUNKS, into=space(rank))
    harness.ask_sparse(*CHUNKS[::2], shards=BOTH)
    harness.turn()
    assert len(harness.jobs("lookup")) == 1
    harness.finish("lookup")
    assert len(harness.jobs("load")) == 1
    harness.settle()
    assert harness.places() == [0, 1, 2, 3]
    assert harness.held() == 8


def test_a_chunk_counts_only_when_every_shard_has_it(harness: StorageHarness) -> None:
    harness.put_in_l2(*CHUNKS[:5])
    harness.put_in_l2(*CHUNKS[3:], into=space(1))
    harness.ask_sparse(*CHUNKS, shards=BOTH)
    harness.turn()
    harness.finish("lookup")
    assert sum(len(job.keys) for _, job in harness.jobs("load")) == 4, "and nothing else is loaded"
    harness.settle()
    assert harness.places() == [3, 4]
    assert harness.held() == 4


def test_a_load_that_fails_costs_its_chunk_and_no_other(harness: StorageHarness) -> None:
    for rank in (0, 1):
        harness.put_in_l2(*CHUNKS, into=space(rank))
    harness.ask_sparse(*CHUNKS, shards=BOTH)
    harness.turn()
    harness.finish("lookup")
    ((adapter, job),) = harness.jobs("load")
    adapter.finish_partly(job, [key.chunk_hash != CHUNKS[2] or key.space != space().space for key in job.keys])
    harness.settle()
    assert harness.places() == [0, 1, 3, 4, 5, 6, 7]
    assert harness.held() == 14, "the other shard's copy is released"


def test_one_chunk_at_several_places_is_one_object_and_read_as_often(harness: StorageHarness) -> None:
    harness.put_in_l2(*CHUNKS[:2])
    harness.ask_sparse(CHUNKS[0], CHUNKS[1], CHUNKS[0], CHUNKS[7])
    harness.settle()
    assert harness.places() == [0, 1, 2]
    assert harness.cache.objects == 2
    for _ in range(2):
        assert harness.cache.contents.state_counts().held == 2
        references = harness.storage.acquire(WORKER, "r", space(), [CHUNKS[0]], 0)
        assert references is not None
        harness.storage.release(references)
    assert harness.held() == 1
    harness.storage.end_lookup(b"c", "r")
    assert harness.held() == 0


def test_workers_take_chunks_in_any_order_for_all_readers(harness: StorageHarness) -> None:
    harness.put(*CHUNKS)
    harness.settle()
    harness.ask_sparse(*CHUNKS[:4], readers=2)
    assert harness.places() == [0, 1, 2, 3]
    for chunks in (CHUNKS[2:4], CHUNKS[:2], tuple(reversed(CHUNKS[:4]))):
        assert harness.held() > 0
        references = harness.storage.acquire(WORKER, "r", space(), chunks, 100)
        assert references is not None
        harness.storage.release(references)
    assert harness.held() == 0


def test_free_is_by_place(harness: StorageHarness) -> None:
    harness.put(*CHUNKS)
    harness.settle()
    harness.ask_sparse(*CHUNKS[4:], CHUNKS[4])
    harness.storage.free_lookup(b"c", "r", 0, 2)
    assert harness.held() == 3, "the first chunk is to be read at another place, too"
    harness.storage.free_lookup(b"c", "r", 0, 2)
    assert harness.held() == 3
    harness.storage.free_lookup(b"c", "r", 2, 5)
    assert harness.held() == 0


def test_waiters_get_the_places(harness: StorageHarness) -> None:
    harness.put_in_l2(*CHUNKS[:3])
    heard: list[Bitmap] = []

    def hear(found: Bitmap) -> bool:
        heard.append(found)
        return True

    harness.ask_sparse(*CHUNKS)
    harness.storage.on_sparse_lookup(b"c", "r", hear)
    harness.settle()
    harness.storage.on_sparse_lookup(b"c", "r", hear)
    harness.ask_sparse(*CHUNKS, request="other")
    harness.storage.on_sparse_lookup(b"c", "other", hear)
    harness.storage.end_lookup(b"c", "other")
    assert heard == [Bitmap(8, [0, 1, 2]), Bitmap(0), Bitmap(0)]


def test_at_its_deadline_it_is_answered_with_what_is_there(harness: StorageHarness) -> None:
    harness.put_in_l2(*CHUNKS)
    harness.put(CHUNKS[5])
    harness.ask_sparse(*CHUNKS)
    harness.turn()
    harness.finish("lookup")
    harness.pass_time(LOOKUP_TIMEOUT)
    assert harness.places() == [5]


def test_the_two_kinds_do_not_answer_for_each_other_and_replace_each_other(harness: StorageHarness) -> None:
    harness.put(*CHUNKS)
    harness.settle()
    harness.ask_sparse(*CHUNKS[:3])
    assert harness.answer() == 0
    assert harness.places() == [0, 1, 2]
    harness.ask(*CHUNKS[:5])
    assert harness.places() == []
    assert (harness.answer(), harness.held()) == (5, 5)


def test_without_shards_or_chunks_nothing_is_found(harness: StorageHarness) -> None:
    harness.ask_sparse()
    assert harness.places() == []
    harness.storage.lookup_sparse(SparseLookupRequest(b"c", "r", (), CHUNKS, 1))
    assert harness.places() == []
    assert harness.held() == 0


def test_windows_have_no_meaning_here(harness: StorageHarness) -> None:
    with pytest.raises(ValueError, match="without"):
        harness.ask_sparse(*CHUNKS, shards=(Shard((space(),), window=2),))


def test_a_chunk_that_is_asked_for_twice_is_loaded_once_and_nothing_is_tried_again(harness: StorageHarness) -> None:
    harness.put_in_l2(*CHUNKS[:2])
    harness.ask_sparse(CHUNKS[0], CHUNKS[1], CHUNKS[0])
    harness.turn()
    harness.finish("lookup")
    ((_, job),) = harness.jobs("load")
    assert [key.chunk_hash for key in job.keys] == list(CHUNKS[:2])
    timeout = harness.prefetch._timeout_seconds()
    assert timeout == LOOKUP_TIMEOUT, "its thread sleeps until the load is answered"
    harness.settle()
    assert harness.places() == [0, 1, 2]
    harness.storage.end_lookup(b"c", "r")
    assert (harness.held(), harness.pins()) == (0, 0)
