"""What a lookup will hit is known before it is all there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from core.tests.storage.storage_harness import CHUNKS, LOOKUP_TIMEOUT, StorageHarness, open_storage


@pytest.fixture
def harness() -> Iterator[StorageHarness]:
    with open_storage(StorageHarness()) as harness:
        yield harness


def expected(harness: StorageHarness, request: str = "r") -> int | None:
    return harness.storage.expected_hits(b"c", request)


def test_it_is_known_when_the_adapters_have_said_what_they_have(harness: StorageHarness) -> None:
    harness.put_in_l2(*CHUNKS[:3])
    harness.ask(*CHUNKS[:5])
    assert expected(harness) is None
    harness.turn()
    assert expected(harness) is None
    harness.finish("lookup")
    assert (expected(harness), expected(harness), harness.answer()) == (3, 3, None), "asked as often as one likes"
    harness.finish("load")
    assert (expected(harness), harness.answer(), expected(harness), harness.answer()) == (3, 3, 3, 0)
    harness.storage.end_lookup(b"c", "r")
    assert expected(harness) == 0
    harness.settle()


def test_it_follows_what_cannot_be_loaded(harness: StorageHarness) -> None:
    harness.put_in_l2(*CHUNKS[:3])
    harness.ask(*CHUNKS[:3])
    harness.turn()
    harness.finish("lookup")
    assert expected(harness) == 3
    for adapter, job in harness.jobs("load"):
        adapter.finish_partly(job, [number == 0 for number in range(len(job.keys))])
    harness.turn()
    assert expected(harness) == harness.answer() == 1
    harness.storage.end_lookup(b"c", "r")
    harness.settle()


def test_what_l1_has_is_known_at_once(harness: StorageHarness) -> None:
    harness.put(*CHUNKS[:2])
    harness.ask(*CHUNKS[:2])
    assert expected(harness) == 2
    assert expected(harness, "never heard of") == 0
    harness.storage.end_lookup(b"c", "r")
    harness.settle()


def test_a_lookup_whose_time_is_over_hits_what_is_there(harness: StorageHarness) -> None:
    harness.put_in_l2(*CHUNKS[:3])
    harness.ask(*CHUNKS[:3])
    harness.turn()
    harness.finish("lookup")
    harness.pass_time(LOOKUP_TIMEOUT + 1)
    assert expected(harness) == harness.answer() == 0
    harness.storage.end_lookup(b"c", "r")
    harness.settle()


def test_sparse_lookups_have_none(harness: StorageHarness) -> None:
    harness.put(*CHUNKS[:2])
    harness.ask_sparse(*CHUNKS[:2])
    assert expected(harness) == 0
    harness.storage.end_lookup(b"c", "r")
    harness.settle()
