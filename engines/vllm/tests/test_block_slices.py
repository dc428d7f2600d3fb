from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lmcache_vllm.block_slices import to_load, to_store
from lmcache_vllm.placement import CacheGroup

ONE = (CacheGroup(("a",), 4),)
TWO = (CacheGroup(("a",), 4), CacheGroup(("b",), 2, window_tokens=8))


def test_a_load_leaves_out_what_vllm_has() -> None:
    assert to_load([[1, 2, 3, 4, 5]], ONE, 0, 16, first=8, chunk_tokens=8) == ((0, 0, 3, 4),)


def test_a_load_leaves_out_what_is_not_allocated() -> None:
    assert to_load([[1, 2, 3]], ONE, 8, 16, first=8, chunk_tokens=8) == ((3, 0),)


def test_a_load_of_two_groups() -> None:
    table = [[1, 2], [0, 0, 7, 8]]
    assert to_load(table, TWO, 0, 8, first=0, chunk_tokens=8) == ((1, 2), (0, 0, 7, 8))


def test_a_store_of_everything() -> None:
    assert list(to_store([[1, 2, 3, 4]], ONE, 8, 16, 8)) == [(8, 16, ((3, 4),))]


def test_chunks_that_lost_a_block_are_not_stored() -> None:
    table = [[1, 2, 3, 4, 5, 6], [11, 12, 13, 14, 15, 0, 17, 18, 19, 20, 21, 22]]
    assert list(to_store(table, TWO, 0, 24, 8)) == [
        (0, 8, ((1, 2), (11, 12, 13, 14))),
        (16, 24, ((5, 6), (19, 20, 21, 22))),
    ]


def test_chunks_without_all_blocks_are_not_stored() -> None:
    assert list(to_store([[1, 2, 3]], ONE, 0, 16, 8)) == [(0, 8, ((1, 2),))]


@given(tail=st.integers(0, 1), whole=st.integers(0, 3), first=st.integers(0, 3))
def test_a_tail_is_whole_blocks_and_nothing_behind_them(tail: int, whole: int, first: int) -> None:
    """What is there behind it is neither stored nor written by a load."""
    end = whole * 8 + tail * 4
    blocks = [*range(1, 12)]
    stored = [*blocks[: end // 4], *[-1] * tail]
    assert list(to_store([blocks], ONE, 0, end, 8)) == ([(0, end, (tuple(stored),))] if end else [])
    skipped = min(first, whole) * 2
    loaded = [*[0] * skipped, *blocks[skipped : end // 4], *[0] * tail]
    assert to_load([blocks], ONE, 0, end, skipped * 4, 8) == (tuple(loaded),)


def test_a_tail_that_lost_a_block_is_not_stored() -> None:
    assert list(to_store([[1, 2, 3, 0]], ONE, 0, 12, 8)) == [(0, 12, ((1, 2, 3, -1),))]
    assert list(to_store([[1, 2, 0, 4]], ONE, 0, 12, 8)) == [(0, 8, ((1, 2),))]
