"""What a lookup finds in both tiers, against the definition of it."""

from __future__ import annotations

from functools import cache
from typing import Literal, NamedTuple
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from core.tests.storage.storage_harness import CHUNKS, StorageHarness, open_storage, space
from lmcache_core.contracts.storage import Shard
from lmcache_core.controllers import prefetch_plan
from lmcache_core.model.keys import ObjectKey

RANKS = (0, 1)
Copy = Literal["none", "good", "bad"]


class Cell(NamedTuple):
    """Where one chunk of one shard is.  A bad copy is found and cannot be loaded."""

    in_l1: bool
    in_l2: tuple[Copy, Copy]

    @property
    def can_be_had(self) -> bool:
        return self.in_l1 or "good" in self.in_l2


COPIES: st.SearchStrategy[Copy] = st.sampled_from(("good", "good", "good", "none", "bad"))
CELLS = st.builds(Cell, st.sampled_from((True, False, False)), st.tuples(COPIES, COPIES))
TABLES = st.tuples(*[st.lists(CELLS, min_size=len(CHUNKS), max_size=len(CHUNKS)) for _ in RANKS])
WINDOWS = st.tuples(*[st.none() | st.integers(1, len(CHUNKS)) for _ in RANKS])


@cache
def objects() -> dict[bytes, bytes]:
    """Every chunk of every shard, as L2 has it."""
    with open_storage(StorageHarness()) as harness:
        for rank in RANKS:
            harness.put_in_l2(*CHUNKS, into=space(rank))
        return dict(harness.adapter.objects)


def furnish(harness: StorageHarness, table: tuple[list[Cell], ...]) -> None:
    for rank, cells in zip(RANKS, table, strict=True):
        if in_l1 := [chunk for chunk, cell in zip(CHUNKS, cells, strict=True) if cell.in_l1]:
            harness.put(*in_l1, into=space(rank))
    harness.settle()
    for number, adapter in enumerate(harness.adapters):
        adapter.objects.clear()
        for rank, cells in zip(RANKS, table, strict=True):
            for chunk, cell in zip(CHUNKS, cells, strict=True):
                name = ObjectKey(space(rank).space, chunk).object_id
                if (copy := cell.in_l2[number]) != "none":
                    adapter.objects[name] = objects()[name] if copy == "good" else bytes(len(objects()[name]))


def held_chunks(harness: StorageHarness) -> list[tuple[int, int]]:
    """(rank, chunk) of what the lookup holds."""
    lookup = harness.storage._lookups._table.find(b"c", "r")
    assert lookup is not None
    keys = [harness.cache.key_of(slot) for slot in lookup.lease.slots]
    ranks = {space(rank).space: rank for rank in RANKS}
    return sorted((ranks[key.space], CHUNKS.index(key.chunk_hash)) for key in keys)


@given(table=TABLES, windows=WINDOWS)
@settings(deadline=None)
def test_a_lookup_finds_the_longest_prefix_that_can_be_had(
    table: tuple[list[Cell], ...], windows: tuple[int | None, ...]
) -> None:
    def needed(end: int) -> list[tuple[int, int]]:
        begins = [0 if window is None else max(0, end - window) for window in windows]
        return [(rank, chunk) for rank in RANKS for chunk in range(begins[rank], end)]

    def is_hit(end: int) -> bool:
        return all(table[rank][chunk].can_be_had for rank, chunk in needed(end))

    expected = max(end for end in range(len(CHUNKS) + 1) if is_hit(end))
    with (
        patch.object(prefetch_plan, "SLICE_CELLS", 3),
        patch.object(prefetch_plan, "IN_FLIGHT_CELLS", 5),
        open_storage(StorageHarness(adapters=2)) as harness,
    ):
        furnish(harness, table)
        harness.ask(*CHUNKS, shards=tuple(Shard((space(rank),), windows[rank]) for rank in RANKS))
        harness.settle()
        assert harness.answer() == expected
        assert held_chunks(harness) == needed(expected)
        harness.storage.end_lookup(b"c", "r")
        assert (harness.held(), harness.pins()) == (0, 0)


@given(table=TABLES)
@settings(deadline=None)
def test_a_sparse_lookup_finds_all_that_every_shard_can_have(table: tuple[list[Cell], ...]) -> None:
    expected = [chunk for chunk in range(len(CHUNKS)) if all(cells[chunk].can_be_had for cells in table)]
    with open_storage(StorageHarness(adapters=2)) as harness:
        furnish(harness, table)
        harness.ask_sparse(*CHUNKS, shards=tuple(Shard((space(rank),)) for rank in RANKS))
        harness.settle()
        assert harness.places() == expected
        assert held_chunks(harness) == [(rank, chunk) for rank in RANKS for chunk in expected]
        harness.storage.end_lookup(b"c", "r")
        assert (harness.held(), harness.pins()) == (0, 0)
