"""Reads that are counted at a lookup, against a count of each single one."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lmcache_core.controllers.prefetch_request import ABSENT
from lmcache_core.storage.open_lookups import PrefixRow, SparseRow

SLOTS = [10, 11, 12, 13, 14, 15, 16, 17]
Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(st.sampled_from(("claim", "claim", "free", "other")), st.integers(0, 9), st.integers(0, 9)), max_size=12
)


@given(readers=st.integers(1, 3), first=st.integers(0, 8), end=st.integers(0, 8), steps=STEPS)
@example(readers=2, first=0, end=8, steps=[("claim", 0, 8), ("claim", 0, 8), ("claim", 0, 8)])
@example(readers=2, first=0, end=8, steps=[("claim", 2, 3), ("claim", 0, 8), ("free", 0, 8)])
def test_a_prefix_row_counts_every_read(readers: int, first: int, end: int, steps: list[Step]) -> None:
    first = min(first, end)
    row = PrefixRow(list(SLOTS), ())
    assert sorted(row.keep(range(first, end), readers)) == sorted(set(SLOTS) - set(SLOTS[first:end]))
    left = dict.fromkeys(range(first, end), readers)
    for kind, begin, length in steps:
        chunks = [chunk for chunk in range(begin, begin + length) if left.get(chunk)]
        if kind == "free":
            spent = row.release_range(begin, begin + length)
            for chunk in chunks:
                left[chunk] = 0
            assert spent == [SLOTS[chunk] for chunk in chunks]
            continue
        worker = [SLOTS[chunk] if chunk < len(SLOTS) else 99 for chunk in range(begin, begin + length)]
        if kind == "other" and worker:  # a chunk that was stored anew lies in another slot
            worker[0] = 77
            chunks = [chunk for chunk in chunks if chunk != begin]
        spent = row.claim(begin, worker)
        for chunk in chunks:
            left[chunk] -= 1
        assert spent == [SLOTS[chunk] for chunk in chunks if not left[chunk]]


def test_a_prefix_row_releases_what_is_not_needed() -> None:
    row = PrefixRow([10, 11, ABSENT, 13, 14], ())
    assert row.keep(range(1, 2), 1) == [10, 13, 14]
    assert (row.slots, row.first) == ([11], 1)
    row = PrefixRow([10, ABSENT], ())
    assert row.keep(range(0), 1) == [10]
    assert row.slots == []


def test_hits_in_l1_are_distinguished_from_loads_and_given_once() -> None:
    row = PrefixRow([10, 11, 12, 13], ())
    row.in_l1 = [10, ABSENT, 12, 13]
    row.keep(range(3), 1)
    assert (row.take_hits(0), row.take_hits(0)) == ([10, 12], [])
    row = PrefixRow([10, 11, 12, 13], ())
    row.in_l1 = row.slots
    row.keep(range(2, 4), 1)
    assert row.take_hits(0) == [12, 13], "what lies in front of the window is not a hit"
    row.in_l1 = [10, 11, 12, 13]
    assert row.take_hits(3) == [13]


@given(
    places=st.lists(st.sampled_from((10, 11, 12, ABSENT)), max_size=8),
    readers=st.integers(1, 3),
    steps=st.lists(
        st.tuples(st.booleans(), st.lists(st.sampled_from((10, 11, 12, 13)), max_size=4), st.integers(0, 8)), max_size=8
    ),
)
def test_a_sparse_row_counts_reads_by_slot(
    places: list[int], readers: int, steps: list[tuple[bool, list[int], int]]
) -> None:
    row = SparseRow(list(places), ())
    needed = [place for place, slot in enumerate(places) if slot != ABSENT]
    assert row.keep(needed, readers) == []
    left = Counter({slot: readers * count for slot, count in Counter(places).items() if slot != ABSENT})
    freed: set[int] = set()
    gone: list[int] = []
    for claims, worker, begin in steps:
        if claims:
            gone += row.claim(0, worker)
            for slot in worker:
                left[slot] -= left[slot] > 0
        else:
            gone += row.release_range(begin, begin + 3)
            for place in range(begin, min(begin + 3, len(places))):
                slot = places[place]
                if slot != ABSENT and place not in freed and left[slot]:
                    freed.add(place)
                    left[slot] -= min(readers, left[slot])
        assert sorted(gone) == sorted(slot for slot in {*places} - {ABSENT} if not left[slot]), "each goes once"


def test_a_sparse_row_keeps_what_every_shard_has() -> None:
    row = SparseRow([10, 11, 10, ABSENT], ())
    assert row.keep([0, 2], 1) == [11]
    assert row.slots == [10, ABSENT, 10, ABSENT]
    row.in_l1 = [10, 11, 10, ABSENT]
    assert (row.take_hits(0), row.take_hits(0)) == ([10], [])


@pytest.mark.parametrize("row", [PrefixRow([10, 11], ()), SparseRow([10, 11], ())])
def test_a_lookup_without_its_answer_has_nothing_to_take_over(row: PrefixRow | SparseRow) -> None:
    assert (row.claim(0, [10, 11]), row.release_range(0, 2)) == ([], [])


def test_a_place_that_is_not_in_the_answer_has_no_reads_to_release() -> None:
    """Its chunk is at another place, too, which is in the answer: that one came in time."""
    row = SparseRow([10, 11, 10], ())
    assert row.keep([0, 1], 1) == []
    assert row.slots == [10, 11, ABSENT]
    assert row.release_range(2, 3) == []
    assert row.release_range(0, 3) == [10, 11]
