"""Groups of several shapes make one object: each at its place, with the blocks that its window keeps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.kv_layout.tests.implementations import IMPLEMENTATIONS
from libs.kv_layout.tests.reference_pages import (
    SEPARATE,
    Presentation,
    ReferencePages,
    Sizes,
    expected_objects,
    random_content,
)
from lmcache_kv_layout import ChunkBlocks, PageCopier, plan_object_groups

FUSED_IN_ROWS = (12, 13, 18)
CHUNK, CHUNKS, BLOCKS = 8, 3, 14


@st.composite
def caches(draw: st.DrawFn) -> tuple[ReferencePages, int]:
    """Pages of one kernel group, and its window."""
    slots = draw(st.sampled_from([2, 4]))
    sizes = Sizes(draw(st.integers(1, 2)), BLOCKS, slots, draw(st.sampled_from([1, 3])), 4, "bfloat16")
    format = draw(st.sampled_from(SEPARATE + FUSED_IN_ROWS))
    return ReferencePages(format, sizes, Presentation(gap=draw(st.sampled_from([0, 6])))), draw(
        st.sampled_from([-1, 4, 8, 12])
    )


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@settings(max_examples=40, deadline=None)
@given(groups=st.lists(caches(), min_size=1, max_size=4), separate=st.booleans(), trim=st.booleans(), data=st.data())
def test_objects_of_several_groups(
    implementation: str, groups: list[tuple[ReferencePages, int]], separate: bool, trim: bool, data: st.DataObject
) -> None:
    copier = PageCopier(native=implementation)  # type: ignore[arg-type]
    paged = [replace(pages.group(), window_tokens=window) for pages, window in groups]
    contents = [random_content(pages.sizes, pages.kv_axis, seed) for seed, (pages, _) in enumerate(groups)]
    ids, tables = [], []
    for (pages, _), group, content in zip(groups, paged, contents, strict=True):
        content[:, :, 0] = 0  # the null block, of which nothing is read
        pages.fill(content)
        order = data.draw(st.permutations(range(1, BLOCKS)))[: CHUNKS * CHUNK // pages.sizes.slots]
        gone = data.draw(st.sets(st.integers(0, len(order) - 1)))
        ids.append([0 if place in gone else block for place, block in enumerate(order)])
        tables.append(ChunkBlocks.of(group, ids[-1], CHUNKS, CHUNK, null_block=0))

    for plan in plan_object_groups(paged, CHUNK, separate, trim_windows=trim):
        chunks = data.draw(st.permutations(range(CHUNKS)))[: data.draw(st.integers(0, CHUNKS))]
        memory = np.full((len(chunks), plan.layout.payload_bytes), 0x5A, np.uint8)
        wanted: list[list[bytes]] = [[] for _ in chunks]
        for region in plan.regions:
            pages, window = groups[region.group]
            per_chunk = CHUNK // pages.sizes.slots
            kept = min(per_chunk, max(1, window // pages.sizes.slots)) if trim and window > 0 else per_chunk
            assert (region.first_block, region.blocks) == (per_chunk - kept, kept)
            flat = [
                block
                for chunk in chunks
                for block in ids[region.group][(chunk + 1) * per_chunk - kept : (chunk + 1) * per_chunk]
            ]
            for place, part in enumerate(expected_objects(contents[region.group], flat, kept)):
                wanted[place].append(part.tobytes())
            addresses = [row.ctypes.data + region.offset for row in memory]
            group = paged[region.group]
            copier.gather(group, pages.bases(group), tables[region.group].flat(chunks, region), addresses)
        assert [row.tobytes() for row in memory] == [b"".join(parts) for parts in wanted]
