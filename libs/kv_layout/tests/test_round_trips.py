"""Whatever is gathered from pages of one format is what its name says, and can be scattered into pages of any other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from libs.kv_layout.tests.implementations import IMPLEMENTATIONS
from libs.kv_layout.tests.reference_pages import (
    FUSED,
    SEPARATE,
    SINGLE_HEAD,
    Presentation,
    ReferencePages,
    Sizes,
    expected_objects,
    random_content,
)
from lmcache_kv_layout import (
    NO_BLOCK,
    EngineKVFormat,
    LayoutHints,
    PageCopier,
    PagedGroup,
    TensorView,
    detect_groups,
    object_layout,
)

Bytes = NDArray[np.uint8]

presentations = st.builds(
    Presentation,
    gap=st.sampled_from([0, 0, 4, 36]),
    interleaved=st.booleans(),
    offset=st.sampled_from([0, 8, 33]),
    swapped=st.booleans(),
)


@st.composite
def sizes(draw: st.DrawFn, heads: int | None = None) -> Sizes:
    return Sizes(
        layers=draw(st.integers(1, 3)),
        blocks=draw(st.integers(3, 6)),
        slots=draw(st.sampled_from([1, 3, 4])),
        heads=heads or draw(st.sampled_from([1, 3, 4])),
        row=draw(st.sampled_from([2, 6, 16])),
        dtype=draw(st.sampled_from(["uint8", "bfloat16", "float32"])),
    )


@st.composite
def pairs(draw: st.DrawFn) -> tuple[ReferencePages, ReferencePages]:
    """Two caches whose objects have one layout."""
    kind = draw(st.sampled_from([SEPARATE, FUSED, FUSED + SINGLE_HEAD]))
    shape = draw(sizes(heads=1 if kind == FUSED + SINGLE_HEAD else None))
    source, target = draw(st.sampled_from(kind)), draw(st.sampled_from(kind))
    return (
        ReferencePages(source, shape, draw(presentations)),
        ReferencePages(target, shape, draw(presentations)),
    )


def block_lists(blocks: int, per_object: int, gaps: bool = False) -> st.SearchStrategy[list[int]]:
    """Ids of whole objects, none of them twice."""
    ids = st.permutations(range(blocks)).map(lambda order: order[: len(order) // per_object * per_object])
    if not gaps:
        return ids
    return st.tuples(ids, st.lists(st.booleans(), min_size=blocks, max_size=blocks)).map(
        lambda drawn: [NO_BLOCK if gone else block for block, gone in zip(drawn[0], drawn[1], strict=False)]
    )


def gathered(
    copier: PageCopier,
    pages: ReferencePages,
    group: PagedGroup,
    blocks: list[int],
    per_object: int,
    layers: range | None = None,
) -> tuple[list[Bytes], int]:
    nbytes = group.region_layout(per_object).payload_bytes
    objects = [np.full(nbytes, 0x5A, np.uint8) for _ in range(len(blocks) // per_object)]
    copied = copier.gather(group, pages.bases(group), blocks, [memory.ctypes.data for memory in objects], layers=layers)
    return objects, copied


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
class TestRoundTrips:
    @settings(max_examples=120, deadline=None)
    @given(pair=pairs(), per_object=st.integers(1, 3), seed=st.integers(0, 2**32 - 1), data=st.data())
    def test_objects_are_the_same_for_all_formats(
        self, implementation: str, pair: tuple[ReferencePages, ReferencePages], per_object: int, seed: int, data: Any
    ) -> None:
        source, target = pair
        copier = PageCopier(native=implementation)  # type: ignore[arg-type]
        content = random_content(source.sizes, source.kv_axis, seed)
        source.fill(content)
        outside = target.outside()
        group, other = source.group(), target.group()
        assert group.format == source.format
        assert other.format == target.format
        chunk_tokens = per_object * source.sizes.slots
        assert object_layout((group,), chunk_tokens) == object_layout((other,), chunk_tokens)

        blocks = data.draw(block_lists(source.sizes.blocks, per_object))
        objects, copied = gathered(copier, source, group, blocks, per_object)
        wanted = expected_objects(content, blocks, per_object)
        assert [memory.tobytes() for memory in objects] == [memory.tobytes() for memory in wanted]
        assert copied == sum(memory.nbytes for memory in wanted)

        before = target.content()
        where = data.draw(block_lists(target.sizes.blocks, per_object))
        put = copier.scatter(other, target.bases(other), where, [memory.ctypes.data for memory in objects])
        assert put == copied
        after = before.copy()
        after[:, :, where] = content[:, :, blocks]
        assert np.array_equal(target.content(), after)
        assert target.outside() == outside, "bytes between the pages were written"

    @settings(max_examples=60, deadline=None)
    @given(pair=pairs(), per_object=st.integers(1, 3), data=st.data())
    def test_layer_ranges_add_up(
        self, implementation: str, pair: tuple[ReferencePages, ReferencePages], per_object: int, data: Any
    ) -> None:
        source, target = pair
        copier = PageCopier(native=implementation)  # type: ignore[arg-type]
        source.fill(random_content(source.sizes, source.kv_axis, 1))
        group, other = source.group(), target.group()
        blocks = data.draw(block_lists(source.sizes.blocks, per_object))
        whole, copied = gathered(copier, source, group, blocks, per_object)
        cut = data.draw(st.integers(0, group.layers))
        ranges = [range(cut), range(cut, group.layers)]
        parts = [gathered(copier, source, group, blocks, per_object, layers) for layers in ranges]
        assert sum(count for _, count in parts) == copied
        hidden = slice(None)
        for place, memory in enumerate(whole):
            by_layer = memory.reshape(group.kv_axis, group.layers, -1)
            first = parts[0][0][place].reshape(by_layer.shape)
            second = parts[1][0][place].reshape(by_layer.shape)
            assert np.array_equal(first[:, :cut, hidden], by_layer[:, :cut])
            assert np.array_equal(second[:, cut:, hidden], by_layer[:, cut:])
            assert (first[:, cut:] == 0x5A).all()
            assert (second[:, :cut] == 0x5A).all()
        addresses = [memory.ctypes.data for memory in whole]
        for layers in ranges:
            copier.scatter(other, target.bases(other), blocks, addresses, layers=layers)
        assert np.array_equal(target.content()[:, :, blocks], source.content()[:, :, blocks])

    @settings(max_examples=60, deadline=None)
    @given(pair=pairs(), per_object=st.integers(1, 3), data=st.data())
    def test_skipped_slots_and_absent_blocks_are_left_alone(
        self, implementation: str, pair: tuple[ReferencePages, ReferencePages], per_object: int, data: Any
    ) -> None:
        source, target = pair
        copier = PageCopier(native=implementation)  # type: ignore[arg-type]
        content = random_content(source.sizes, source.kv_axis, 2)
        source.fill(content)
        group, other = source.group(), target.group()
        count = source.sizes.blocks // per_object * per_object
        objects, _ = gathered(copier, source, group, list(range(count)), per_object)
        where = data.draw(block_lists(source.sizes.blocks, per_object, gaps=True))
        skip = data.draw(st.integers(0, per_object * group.slots_per_block))
        expected = target.content()
        slots = source.sizes.slots
        written = 0
        for place, block in enumerate(where):
            for slot in range(slots):
                if block != NO_BLOCK and place * slots + slot >= skip:
                    expected[:, :, block, slot] = content[:, :, place, slot]
                    written += expected[:, :, block, slot].nbytes
        addresses = [memory.ctypes.data for memory in objects]
        kept = [memory.copy() for memory in objects]
        assert copier.scatter(other, target.bases(other), where, addresses, skip_slots=skip) == written
        assert np.array_equal(target.content(), expected)
        assert all(np.array_equal(memory, copy) for memory, copy in zip(objects, kept, strict=True)), "objects changed"

    @settings(max_examples=60, deadline=None)
    @given(pair=pairs(), per_object=st.integers(1, 3), data=st.data())
    def test_an_object_has_zeros_where_the_engine_has_no_block(
        self, implementation: str, pair: tuple[ReferencePages, ReferencePages], per_object: int, data: Any
    ) -> None:
        source, _ = pair
        copier = PageCopier(native=implementation)  # type: ignore[arg-type]
        content = random_content(source.sizes, source.kv_axis, 3)
        source.fill(content)
        group = source.group()
        blocks = data.draw(block_lists(source.sizes.blocks, per_object, gaps=True))
        objects, copied = gathered(copier, source, group, blocks, per_object)
        with_a_zero_block = np.concatenate([content, np.zeros_like(content[:, :, :1])], axis=2)
        wanted = expected_objects(with_a_zero_block, blocks, per_object)  # -1 is the last one
        assert [memory.tobytes() for memory in objects] == [memory.tobytes() for memory in wanted]
        there = sum(block != NO_BLOCK for block in blocks)
        assert copied == there * content[:, :, 0].nbytes

    def test_blocks_of_values_and_scales_are_copied_whole(self, implementation: str) -> None:
        blocks, slots, row = 5, 4, 132
        rng = np.random.default_rng(4)
        pages = [rng.integers(0, 256, (blocks, slots * row), dtype=np.uint8) for _ in range(2)]
        views = [TensorView("uint8", (blocks, slots, row), (slots * row, row, 1), 0, place) for place in range(2)]
        (group,) = detect_groups(views, LayoutHints(kv_layout="NHD"))
        assert group.format is EngineKVFormat.NL_X_NB_BSV_BSS
        assert (group.slots_per_block, group.tokens_per_block) == (1, slots)
        objects = [np.zeros(2 * 2 * slots * row, np.uint8)]
        copier = PageCopier(native=implementation)  # type: ignore[arg-type]
        copier.gather(group, [page.ctypes.data for page in pages], [3, 1], [objects[0].ctypes.data])
        wanted = np.concatenate([pages[0][3], pages[0][1], pages[1][3], pages[1][1]])
        assert objects[0].tobytes() == wanted.tobytes()
