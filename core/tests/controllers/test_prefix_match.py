"""How far a lookup can get, against the definition of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lmcache_core.controllers.prefetch_request import in_every, longest_prefix, match_of, needed_from, prefix_of
from lmcache_core.model.results import Bitmap

CHUNKS = st.integers(0, 12)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[bytearray], list[int | None], int]:
    chunks = draw(CHUNKS)
    rows = draw(st.integers(1, 4))
    likely = st.sampled_from((0, 1, 1, 1, 1))
    flags = [bytearray(draw(st.lists(likely, min_size=chunks, max_size=chunks))) for _ in range(rows)]
    windows = draw(st.lists(st.none() | st.integers(1, 14), min_size=rows, max_size=rows))
    return flags, windows, chunks


@given(tables())
def test_the_longest_prefix_of_which_every_shard_has_what_it_needs(
    table: tuple[list[bytearray], list[int | None], int],
) -> None:
    shards, windows, chunks = table

    def is_hit(end: int) -> bool:
        return all(
            all(flags[chunk] for chunk in range(0 if window is None else max(0, end - window), end))
            for flags, window in zip(shards, windows, strict=True)
        )

    expected = max(end for end in range(chunks + 1) if is_hit(end))
    assert longest_prefix(shards, windows, chunks) == expected
    match = match_of(shards, windows, chunks, sparse=False)
    assert match == prefix_of(expected, windows)
    for needed, window in zip(match.needed, windows, strict=True):
        assert list(needed) == list(range(needed_from(expected, window), expected))


@given(tables())
def test_a_sparse_lookup_has_what_every_shard_has(table: tuple[list[bytearray], list[int | None], int]) -> None:
    shards, _, chunks = table
    expected = [chunk for chunk in range(chunks) if all(flags[chunk] for flags in shards)]
    assert in_every(shards) == expected
    match = match_of(shards, [None] * len(shards), chunks, sparse=True)
    assert match.answer == Bitmap(chunks, expected)
    assert all(list(needed) == expected for needed in match.needed)


def test_without_shards_nothing_is_there() -> None:
    assert match_of([], [], 3, sparse=False).answer == 0
    assert match_of([], [], 3, sparse=True).answer == Bitmap(3)
