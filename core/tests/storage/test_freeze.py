"""A freeze refuses stores and keeps lookups to L1, and ends by itself; the end of the server ends for good."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from core.tests.storage.storage_harness import CHUNKS, WORKER, StorageHarness, open_storage, space
from lmcache_core.contracts.events import StoreRefused


@pytest.fixture
def harness() -> Iterator[StorageHarness]:
    with open_storage(StorageHarness()) as harness:
        yield harness


def stores(harness: StorageHarness, chunk: bytes) -> bool:
    references, indexes = harness.storage.reserve(WORKER, space(), [chunk])
    harness.storage.discard(references)
    return bool(indexes)


def test_stores_are_refused_until_it_is_over_and_counted(harness: StorageHarness) -> None:
    harness.storage.freeze.begin(5.0)
    assert not stores(harness, CHUNKS[0])
    assert harness.events.of(StoreRefused) == [StoreRefused("m", "", 1, "frozen")]
    (condition,) = harness.storage.freeze.conditions()
    assert (condition.name, condition.reason) == ("frozen", "stores are refused, and lookups see L1 only, for 5 s more")
    harness.clock.advance(4.9)
    assert not stores(harness, CHUNKS[0])
    harness.clock.advance(0.2)
    assert stores(harness, CHUNKS[0])
    assert not list(harness.storage.freeze.conditions())


@pytest.mark.parametrize("ends", ["undone", "over"])
def test_lookups_see_l1_only(harness: StorageHarness, ends: str) -> None:
    harness.put_in_l2(*CHUNKS[2:4])
    harness.put(*CHUNKS[:2])
    harness.settle()
    harness.storage.freeze.begin(None if ends == "undone" else 5.0)
    harness.ask(*CHUNKS[:4])
    assert harness.answer() == 2
    harness.storage.end_lookup(b"c", "r")
    if ends == "undone":
        harness.clock.advance(1e6)
        assert not stores(harness, CHUNKS[5])
        harness.storage.freeze.end()
    else:
        harness.clock.advance(5.0)
    harness.ask(*CHUNKS[:4])
    harness.settle()
    assert harness.answer() == 4


def test_a_later_freeze_replaces_the_time_of_the_one_before(harness: StorageHarness) -> None:
    harness.storage.freeze.begin(30.0)
    harness.storage.freeze.begin(1.0)
    harness.clock.advance(1.0)
    assert stores(harness, CHUNKS[0])


def test_the_end_of_the_server_is_not_undone(harness: StorageHarness) -> None:
    harness.storage.freeze.begin(5.0)
    harness.storage.take_no_stores()
    harness.storage.freeze.end()
    harness.storage.freeze.begin(1.0)
    harness.clock.advance(10.0)
    assert not stores(harness, CHUNKS[0])
    assert not list(harness.storage.freeze.conditions())


def test_one_holder_does_not_end_the_freeze_of_another(harness: StorageHarness) -> None:
    freeze = harness.storage.freeze
    freeze.begin(None)
    freeze.begin(5.0, "other")
    harness.clock.advance(6.0)
    assert not stores(harness, CHUNKS[0])
    (condition,) = freeze.conditions()
    assert "until that is undone" in condition.reason
    freeze.end("other")
    assert not stores(harness, CHUNKS[0])
    freeze.end()
    assert stores(harness, CHUNKS[0])
