"""What a lookup will hit is known before it is all there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from core.tests.storage.house import CHUNKS, LOOKUP_TIMEOUT, House, open_house


@pytest.fixture
def house() -> Iterator[House]:
    with open_house(House()) as house:
        yield house


def expected(house: House, request: str = "r") -> int | None:
    return house.storage.expected_hits(b"c", request)


def test_it_is_known_when_the_adapters_have_said_what_they_have(house: House) -> None:
    house.put_in_l2(*CHUNKS[:3])
    house.ask(*CHUNKS[:5])
    assert expected(house) is None
    house.turn()
    assert expected(house) is None
    house.finish("lookup")
    assert (expected(house), expected(house), house.answer()) == (3, 3, None), "asked as often as one likes"
    house.finish("load")
    assert (expected(house), house.answer(), expected(house), house.answer()) == (3, 3, 3, 0)
    house.storage.end_lookup(b"c", "r")
    assert expected(house) == 0
    house.settle()


def test_it_follows_what_cannot_be_loaded(house: House) -> None:
    house.put_in_l2(*CHUNKS[:3])
    house.ask(*CHUNKS[:3])
    house.turn()
    house.finish("lookup")
    assert expected(house) == 3
    for adapter, job in house.jobs("load"):
        adapter.finish_partly(job, [number == 0 for number in range(len(job.keys))])
    house.turn()
    assert expected(house) == house.answer() == 1
    house.storage.end_lookup(b"c", "r")
    house.settle()


def test_what_l1_has_is_known_at_once(house: House) -> None:
    house.put(*CHUNKS[:2])
    house.ask(*CHUNKS[:2])
    assert expected(house) == 2
    assert expected(house, "never heard of") == 0
    house.storage.end_lookup(b"c", "r")
    house.settle()


def test_a_lookup_whose_time_is_over_hits_what_is_there(house: House) -> None:
    house.put_in_l2(*CHUNKS[:3])
    house.ask(*CHUNKS[:3])
    house.turn()
    house.finish("lookup")
    house.pass_time(LOOKUP_TIMEOUT + 1)
    assert expected(house) == house.answer() == 0
    house.storage.end_lookup(b"c", "r")
    house.settle()


def test_sparse_lookups_have_none(house: House) -> None:
    house.put(*CHUNKS[:2])
    house.ask_sparse(*CHUNKS[:2])
    assert expected(house) == 0
    house.storage.end_lookup(b"c", "r")
    house.settle()
