"""Which kernel groups share an object, and where they lie in it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lmcache_client import CompositeLayout, ObjectLayout
from lmcache_kv_layout import (
    GROUPS_MAX,
    EngineKVFormat,
    LayoutError,
    PagedGroup,
    object_layout,
    plan_object_groups,
)

CHUNK = 256


def group(
    window: int = -1, *, tokens: int = 16, slots: int = 16, heads: int = 2, tag: int = 0, recurrent: bool = False
) -> PagedGroup:
    return PagedGroup(
        format=EngineKVFormat.NL_X_NB_NH_BS_CS,
        layers=2,
        kv_axis=1,
        heads=heads,
        head_bytes=64,
        item_bytes=2,
        dtype="bfloat16",
        blocks=9,
        slots_per_block=slots,
        tokens_per_block=tokens,
        block_stride=slots * heads * 64,
        slot_stride=64,
        head_stride=slots * 64,
        bases=((0, 0), (1, 0)),
        window_tokens=window,
        object_group_tag=tag,
        recurrent=recurrent,
    )


def test_one_group_is_not_a_composite() -> None:
    assert object_layout([group()], CHUNK) == ObjectLayout(1, 2, CHUNK, 64, "bfloat16")
    assert object_layout([group(slots=4)], CHUNK) == ObjectLayout(1, 2, CHUNK // 4, 64, "bfloat16")


def test_together_all_groups_are_one_object_of_which_every_chunk_is_needed() -> None:
    groups = [group(), group(64, heads=1), group(512, tag=3)]
    (plan,) = plan_object_groups(groups, CHUNK, separate=False)
    assert plan.groups == (0, 1, 2)
    assert plan.window_chunks is None
    sizes = [each.object_layout(CHUNK).payload_bytes for each in groups]
    assert [region.nbytes for region in plan.regions] == sizes
    assert [region.offset for region in plan.regions] == [0, sizes[0], sizes[0] + sizes[1]]
    assert [(region.first_block, region.blocks) for region in plan.regions] == [(0, 16)] * 3
    assert plan.layout == CompositeLayout(tuple(each.object_layout(CHUNK) for each in groups))
    assert object_layout(groups, CHUNK) == plan.layout


def test_apart_equal_windows_share_an_object_and_tagged_groups_come_last() -> None:
    groups = [group(300, tag=1), group(), group(257), group(512), group(100), group(tag=1), group(100, recurrent=True)]
    plans = plan_object_groups(groups, CHUNK, separate=True)
    assert [plan.groups for plan in plans] == [(1,), (2, 3), (4,), (6,), (0,), (5,)]
    assert [plan.window_chunks for plan in plans] == [None, 2, 1, 1, 2, None]


def test_trimmed_windows_keep_the_last_blocks_of_a_chunk() -> None:
    groups = [group(), group(64, slots=4), group(CHUNK), group(512)]
    plans = plan_object_groups(groups, CHUNK, separate=True, trim_windows=True)
    kept = {region.group: (region.first_block, region.blocks) for plan in plans for region in plan.regions}
    assert kept == {0: (0, 16), 1: (12, 4), 2: (0, 16), 3: (0, 16)}
    trimmed = next(plan for plan in plans if 1 in plan.groups)
    assert trimmed.layout == CompositeLayout((groups[1].region_layout(4), groups[2].region_layout(16)))


@pytest.mark.parametrize("separate", [False, True])
def test_what_does_not_fit_is_refused(separate: bool) -> None:
    with pytest.raises(LayoutError, match=f"0 kernel groups; a chunk object has 1 to {GROUPS_MAX}"):
        plan_object_groups([], CHUNK, separate)
    with pytest.raises(LayoutError, match="65 kernel groups"):
        plan_object_groups([group()] * (GROUPS_MAX + 1), CHUNK, separate)
    with pytest.raises(LayoutError, match="chunk of 256 tokens is not a whole number of blocks of 48 tokens"):
        plan_object_groups([group(tokens=48)], CHUNK, separate)
    with pytest.raises(LayoutError, match="chunk of 0 tokens"):
        plan_object_groups([group()], 0, separate)
    with pytest.raises(LayoutError, match="kernel group 1: a window of 24 tokens"):
        plan_object_groups([group(), group(24)], CHUNK, separate, trim_windows=True)
    with pytest.raises(LayoutError, match="kernel group 0: a dimension is too large"):
        plan_object_groups([replace(group(), head_bytes=2**65)], CHUNK, separate)
