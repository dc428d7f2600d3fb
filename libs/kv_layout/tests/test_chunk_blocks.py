"""Block ids of a range become those of each chunk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.kv_layout.tests.test_object_groups import group
from lmcache_kv_layout import (
    NO_BLOCK,
    ChunkBlocks,
    LayoutError,
    ObjectRegion,
    PagedGroup,
    plan_object_groups,
    whole_chunks,
)

CHUNK, PER_CHUNK = 64, 4
LAST_TWO = ObjectRegion(0, 0, 0, 2, 2)


def joined(parts: Iterable[list[int]]) -> list[int]:
    return list(chain.from_iterable(parts))


@given(ids=st.lists(st.integers(0, 8), max_size=40), data=st.data())
def test_ids_are_parted_by_chunk(ids: list[int], data: st.DataObject) -> None:
    chunks = data.draw(st.integers(0, len(ids) // PER_CHUNK))
    null_block = data.draw(st.sampled_from([None, 0, 3]))
    table = ChunkBlocks.of(group(), ids, chunks, CHUNK, null_block)
    shown = [NO_BLOCK if block == null_block else block for block in ids]
    chosen = data.draw(st.lists(st.integers(0, max(0, chunks - 1)), max_size=chunks)) if chunks else []
    parts = [shown[chunk * PER_CHUNK : (chunk + 1) * PER_CHUNK] for chunk in range(chunks)]
    assert list(table.flat(range(chunks))) == joined(parts)
    assert list(table.flat(chosen)) == joined(parts[chunk] for chunk in chosen)
    assert list(table.flat(chosen, LAST_TWO)) == joined(parts[chunk][2:] for chunk in chosen)
    for chunk, part in enumerate(parts):
        for blocks in range(1, PER_CHUNK + 1):
            assert table.ends_whole(chunk, blocks) == all(block != NO_BLOCK for block in part[PER_CHUNK - blocks :])


WHOLE, LAST, FIRST, NOTHING = [1, 2, 3, 4], [0, 0, 0, 4], [1, 0, 0, 0], [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("kind", "separate", "trim", "chunks"),
    [
        (group(), False, False, [0]),
        (group(16), False, False, [0]),
        (group(16), True, False, [0]),
        (group(16), True, True, [0, 1]),
        (group(128), True, True, [0]),
        (group(16, recurrent=True), False, False, [0, 1]),
        (group(16, recurrent=True), True, True, [0, 1]),
        (group(recurrent=True), False, False, [0]),
    ],
)
def test_chunks_with_gaps_inside_of_the_window_are_not_whole(
    kind: PagedGroup, separate: bool, trim: bool, chunks: list[int]
) -> None:
    table = ChunkBlocks.of(kind, WHOLE + LAST + FIRST + NOTHING, 4, CHUNK, null_block=0)
    (plan,) = plan_object_groups([kind], CHUNK, separate, trim_windows=trim)
    assert whole_chunks([kind], plan, [table], 4) == chunks


def test_a_chunk_is_whole_if_all_groups_of_its_object_are() -> None:
    groups = [group(), group(64), group()]
    full, windowed = plan_object_groups(groups, CHUNK, separate=True)
    ids = [WHOLE + WHOLE + LAST, WHOLE + NOTHING + WHOLE, NOTHING + WHOLE + WHOLE]
    tables = [ChunkBlocks.of(each, blocks, 3, CHUNK, null_block=0) for each, blocks in zip(groups, ids, strict=True)]
    assert whole_chunks(groups, full, tables, 3) == [1]
    assert whole_chunks(groups, windowed, tables, 3) == [0, 2]


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        ([1] * 7, "7 block ids for 2 chunks of 4 blocks; 8 are needed"),
        ([1] * 7 + [9], "block ids from 1 to 9; the group has the blocks 0 to 8"),
        ([-1] + [1] * 7, "block ids from -1 to 1"),
        ([2**63] + [1] * 7, "not a 64-bit integer"),
        ([1.5] + [1] * 7, "not a 64-bit integer"),
        (bytes(8), "not a 64-bit integer"),
        (bytearray(8), "not a 64-bit integer"),
    ],
)
def test_ids_that_cannot_be_are_refused(ids: Sequence[int], reason: str) -> None:
    with pytest.raises(LayoutError, match=reason):
        ChunkBlocks.of(group(), ids, 2, CHUNK)


def test_a_negative_number_of_chunks_is_refused() -> None:
    with pytest.raises(LayoutError, match="-1 chunks"):
        ChunkBlocks.of(group(), [1] * 8, -1, CHUNK)
