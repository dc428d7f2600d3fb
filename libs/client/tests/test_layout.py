"""What a chunk looks like, and the fingerprint that keeps different shapes apart."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_client.layout import (
    ITEM_BYTES,
    ORDER_CHARS_MAX,
    PARTS_MAX,
    ChunkLayout,
    CompositeLayout,
    ObjectLayout,
    joined_layout,
)

REGIONS = st.builds(
    ObjectLayout,
    kv_axis=st.sampled_from((1, 2)),
    layers=st.integers(1, 100),
    slots=st.integers(1, 512),
    hidden=st.integers(1, 5000),
    dtype=st.sampled_from(sorted(ITEM_BYTES)),
)
BLOCKED = st.builds(
    replace, REGIONS, block_slots=st.sampled_from((16, 32, 64, 128)), order=st.text("0123456789abcdef", max_size=16)
)
FULL, WINDOW = ObjectLayout(2, 4, 256, 128, "bfloat16"), ObjectLayout(2, 12, 256, 64, "bfloat16")


@given(st.lists(REGIONS, min_size=1, max_size=5))
def test_regions_are_contiguous(parts: list[ObjectLayout]) -> None:
    layout = joined_layout(parts)
    assert layout.payload_bytes == sum(part.payload_bytes for part in parts)
    assert len(layout.fingerprint) == 16


@given(st.sets(st.lists(REGIONS | BLOCKED, min_size=1, max_size=3).map(tuple), min_size=2, max_size=6))
def test_no_two_shapes_have_one_fingerprint(shapes: set[tuple[ObjectLayout, ...]]) -> None:
    layouts: list[ChunkLayout] = [joined_layout(parts) for parts in shapes]
    for one, other in combinations(layouts, 2):
        assert one.fingerprint != other.fingerprint


def test_slots_with_rows_of_their_own_are_named_as_ever() -> None:
    """The fingerprints of version 1, so that what was stored under them is found."""
    assert FULL.fingerprint.hex() == "3604e558270948ca06b78978154c9b36"
    assert replace(FULL, block_slots=64, order="0123").fingerprint.hex() == "6fff688c51bca99bf1ec281836fd4975"


@pytest.mark.parametrize(
    ("block_slots", "order"),
    [(-1, ""), (2**32, ""), (0, "a"), (16, "a" * (ORDER_CHARS_MAX + 1)), (16, "a\n"), (16, "\0")],
)
def test_an_order_is_that_of_blocks(block_slots: int, order: str) -> None:
    with pytest.raises(ValueError, match="block_slots"):
        replace(FULL, block_slots=block_slots, order=order)


def test_one_region_is_what_every_path_calls_it() -> None:
    assert joined_layout([FULL]) is FULL


def test_order_is_part_of_the_shape() -> None:
    assert joined_layout([FULL, WINDOW]).fingerprint != joined_layout([WINDOW, FULL]).fingerprint


def test_a_composite_is_bytes_to_a_copy_of_the_whole() -> None:
    layout = joined_layout([FULL, WINDOW])
    assert (layout.dtype, layout.shape) == ("uint8", (layout.payload_bytes,))
    assert str(layout) == "bfloat16[2, 4, 256, 128] + bfloat16[2, 12, 256, 64]"


@pytest.mark.parametrize("count", [0, 1, PARTS_MAX + 1])
def test_it_has_two_regions_at_least_and_not_any_number(count: int) -> None:
    with pytest.raises(ValueError, match="regions in a chunk"):
        CompositeLayout((FULL,) * count)
