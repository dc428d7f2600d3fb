"""Tokens of a chunk are in the pages as the model would have computed them at their new position; nothing else changes."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.kv_layout.tests.implementations import OF_ROWS
from libs.kv_layout.tests.reference_pages import ReferencePages, Sizes, expected_objects
from libs.kv_layout.tests.reference_rows import (
    NUMBERS,
    ORDERS,
    ROUNDING,
    Cache,
    random_bits,
    table_of,
    turned_exactly,
)
from libs.kv_layout.tests.test_round_trips import presentations
from lmcache_kv_layout import ChunkRows, KVPlaces, LayoutError, Rotary, TensorView

FORMATS = (0, 1, 2, 4, 6, 7, 8, 9, 10, 11, 12, 13, 15, 16)
"""Those with K and V of all heads in rows."""
POSITIONS = 400


@st.composite
def caches(draw: st.DrawFn) -> Cache:
    shape = Sizes(
        layers=draw(st.integers(1, 3)),
        blocks=draw(st.integers(4, 6)),
        slots=draw(st.sampled_from([4, 6])),
        heads=draw(st.sampled_from([1, 3])),
        row=draw(st.sampled_from([2, 4, 8, 32, 34])),
        dtype=draw(st.sampled_from(list(NUMBERS))),
    )
    return Cache.of(draw(st.sampled_from(FORMATS)), draw(st.sampled_from(ORDERS)), shape, draw(presentations))


@st.composite
def rotaries(draw: st.DrawFn, layers: int, size: int) -> list[tuple[float, Rotary | None]]:
    """Of each layer the base, and what is made of its table."""
    style: Any = draw(st.sampled_from(["neox", "gptj"]))
    found: list[tuple[float, Rotary | None]] = []
    for _ in range(layers):
        base = draw(st.sampled_from([100.0, 10_000.0, 1e6]))
        width = draw(st.integers(1, size // 2)) * 2
        rotary = Rotary(table_of(base, width, POSITIONS, draw(st.sampled_from([1.0, 1.21, 0.7]))), style)
        found.append((base, draw(st.sampled_from([rotary, rotary, rotary, None]))))
    return found


@pytest.mark.parametrize("implementation", OF_ROWS)
class TestReads:
    @settings(max_examples=200, deadline=None)
    @given(cache=caches(), per_object=st.integers(1, 3), seed=st.integers(0, 2**32 - 1), data=st.data())
    def test_what_is_read_is_what_float64_says(
        self, implementation: str, cache: Cache, per_object: int, seed: int, data: Any
    ) -> None:
        group, pages, dtype = cache.group(), cache.pages, cache.pages.sizes.dtype
        slots, layers = pages.sizes.slots, pages.sizes.layers
        blocks = data.draw(st.permutations(range(pages.sizes.blocks)))
        start = data.draw(st.integers(0, per_object * slots))
        tokens = range(start, data.draw(st.integers(start, per_object * slots)))
        target = data.draw(st.integers(0, len(blocks) * slots - len(tokens)))
        delta = data.draw(st.integers(1 - POSITIONS, POSITIONS - 1))
        drawn = data.draw(rotaries(layers, cache.size))
        first = data.draw(st.integers(0, layers))
        chosen = range(first, data.draw(st.integers(first, layers)))

        shape = (2, layers, per_object, slots, pages.sizes.heads, cache.size)
        stored = random_bits(shape, dtype, seed)
        (chunk,) = expected_objects(cache.encode(stored), list(range(per_object)), per_object)
        before = random_bits((2, layers, len(blocks), *shape[3:]), dtype, seed + 1)
        pages.fill(cache.encode(before))
        kept, outside = chunk.copy(), pages.outside()

        rows = ChunkRows(group, [rotary for _, rotary in drawn], cache.size, per_object * slots, implementation)  # type: ignore[arg-type]
        written = rows.read(pages.bases(group), blocks, chunk.ctypes.data, tokens, target, delta, layers=chosen)

        found = cache.decode(pages.content())[:, :, blocks]
        assert np.array_equal(chunk, kept)
        assert pages.outside() == outside, "bytes between the pages were written"
        assert written == 2 * len(chosen) * len(tokens) * pages.sizes.heads * cache.size * cache.item.itemsize
        by_token = (2, layers, -1, *shape[4:])
        found, stored = found.reshape(by_token), stored.reshape(by_token)
        expected = before[:, :, blocks].reshape(by_token)
        there = slice(target, target + len(tokens))
        taken, changed = slice(start, tokens.stop), slice(first, chosen.stop)
        expected[1, changed, there] = stored[1, changed, taken]
        for layer in chosen:
            base, rotary = drawn[layer]
            source = stored[0, layer, taken]
            if rotary is None or delta == 0:
                expected[0, layer, there] = source
                continue
            exact = turned_exactly(NUMBERS[dtype](source).astype(np.float64), base, rotary, delta)
            got = NUMBERS[dtype](found[0, layer, there]).astype(np.float64)
            spread = 4e-7 * np.abs(exact).max(axis=-1, keepdims=True, initial=0) * 8
            assert (np.abs(got - exact) <= ROUNDING[dtype] * np.abs(exact) + spread + 2.0**-25).all()
            untouched = slice(rotary.rotary_dim, None)
            assert np.array_equal(found[0, layer, there, :, untouched], source[..., untouched])
            expected[0, layer, there] = found[0, layer, there]
        assert np.array_equal(found, expected)

    def test_a_turn_of_no_positions_keeps_every_bit(self, implementation: str) -> None:
        cache = Cache.of(12, "transposed", Sizes(1, 4, 4, 2, 8, "bfloat16"))
        group, pages = cache.group(), cache.pages
        chunk = np.arange(4 * 2 * 16, dtype=np.uint16) + 0x7F80  # infinities and NaN among them
        rows = ChunkRows(group, Rotary(table_of(100.0, 8, 9), "neox"), 8, 4, implementation)  # type: ignore[arg-type]
        rows.read(pages.bases(group), [2], chunk.ctypes.data, range(4), 0, 0)
        assert np.array_equal(pages.content()[:, :, 2].reshape(-1).view(np.uint16), chunk)

    @pytest.mark.parametrize(
        ("wrong", "reason"),
        [
            ({"tokens": range(-1, 2)}, r"range\(-1, 2\) is not a range of the 8 tokens of a chunk"),
            ({"tokens": range(3, 9)}, "not a range of the 8 tokens"),
            ({"tokens": range(0, 4, 2)}, "not a range of the 8 tokens"),
            ({"tokens": range(4, 2, -1)}, "not a range of the 8 tokens"),
            ({"target": -1}, "tokens -1 to 5 of a request with 3 blocks of 4 tokens"),
            ({"target": 7}, "tokens 7 to 13 of a request with 3 blocks"),
            ({"target": 2**70}, "of a request with 3 blocks"),
            ({"blocks": [0, 5, 1]}, "block ids from 0 to 5; the group has the blocks 0 to 4"),
            ({"blocks": [0, -2, 1]}, "block ids from -2"),
            ({"blocks": [0, -1, 1]}, "block 1 of the request is not there"),
            ({"blocks": [0, 2**64, 1]}, "not a 64-bit integer"),
            ({"bases": [4096]}, "1 bases; 1 x 2 layers need 2"),
            ({"bases": [4096, 0]}, "address of a base is null"),
            ({"region": 0}, "address of a chunk is null"),
            ({"region": 2**63 - 8}, "beyond what a process has"),
            ({"layers": range(1, 3)}, "not a range of the 2 layers"),
            ({"delta": 20}, "cannot be turned by 20 positions: the model's rotary table has 20"),
            ({"delta": -20}, "cannot be turned by -20 positions"),
        ],
    )
    def test_nothing_is_written_where_something_is_wrong(
        self, implementation: str, wrong: dict[str, Any], reason: str
    ) -> None:
        cache = Cache.of(12, "rows", Sizes(2, 5, 4, 1, 4, "float32"))
        group, pages = cache.group(), cache.pages
        before = pages.content()
        chunk = np.ones(group.region_layout(2).payload_bytes, np.uint8)
        rows = ChunkRows(group, Rotary(table_of(100.0, 4, 20), "neox"), 4, 8, implementation)  # type: ignore[arg-type]
        arguments: dict[str, Any] = {
            "bases": pages.bases(group),
            "blocks": [0, 2, 1],
            "region": chunk.ctypes.data,
            "tokens": range(1, 7),
            "target": 3,
            "delta": 7,
        }
        with pytest.raises(LayoutError, match=reason):
            rows.read(**{**arguments, **wrong})
        assert np.array_equal(pages.content(), before)
        assert rows.read(**arguments) == 2 * 2 * 6 * 4 * 4


@pytest.mark.skipif("on" not in OF_ROWS, reason="lmcache-native is not installed")
@settings(max_examples=60, deadline=None)
@given(
    order=st.sampled_from(ORDERS),
    dtype=st.sampled_from(list(NUMBERS)),
    slots=st.sampled_from([8, 18, 32]),
    size=st.sampled_from([16, 40]),
    style=st.sampled_from(["neox", "gptj"]),
    data=st.data(),
)
def test_both_implementations_write_the_same_bits(
    order: str, dtype: str, slots: int, size: int, style: Any, data: Any
) -> None:
    """Of any bits, infinities and subnormal numbers among them; where one has NaN, the other has one."""
    cache = Cache.of(data.draw(st.sampled_from([2, 12, 13])), order, Sizes(1, 4, slots, 1, size, dtype))
    group, pages = cache.group(), cache.pages
    start = data.draw(st.integers(0, 2 * slots))
    tokens = range(start, data.draw(st.integers(start, 2 * slots)))
    target = data.draw(st.integers(0, 4 * slots - len(tokens)))
    delta = data.draw(st.integers(1 - POSITIONS, POSITIONS - 1))
    width = data.draw(st.integers(1, size // 2)) * 2
    rotary = Rotary(table_of(1000.0, width, POSITIONS), style)
    chunk = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1))).bytes(group.region_layout(2).payload_bytes)
    kept = np.frombuffer(chunk, np.uint8)
    before, found = pages.content(), []
    for native in ("off", "on"):
        pages.fill(before)
        rows = ChunkRows(group, rotary, size, 2 * slots, native)
        rows.read(pages.bases(group), [3, 1, 0, 2], kept.ctypes.data, tokens, target, delta)
        bits = cache.decode(pages.content())
        found.append(np.where(np.isnan(NUMBERS[dtype](bits)), 0, bits))
    assert np.array_equal(found[0], found[1])


class TestWhatCannotBeMoved:
    @pytest.mark.parametrize(
        ("format", "dtype", "size", "reason"),
        [
            (12, "uint8", 4, "K in uint8 cannot be turned; float32, bfloat16, float16 can"),
            (3, "float32", 8, "rows of 8 elements with a head size of 8 are not K and V"),
            (1, "float32", 4, "rows of 8 elements with a head size of 4 are not K and V"),
            (12, "float32", 0, "with a head size of 0"),
        ],
    )
    def test_pages_without_k_and_v_of_each_token(self, format: int, dtype: str, size: int, reason: str) -> None:
        shape = Sizes(2, 4, 4, 1, 8, dtype)
        group = replace(ReferencePages(format, shape).group(), block_slots=0)
        with pytest.raises(LayoutError, match=reason):
            ChunkRows(group, None, size, 8)

    def test_an_order_that_is_not_known(self) -> None:
        group = ReferencePages(12, Sizes(2, 4, 4, 1, 8, "float32")).group()
        with pytest.raises(LayoutError, match="the order of elements within blocks of 4 slots is not known"):
            ChunkRows(group, None, 4, 8)

    def test_compressed_pages(self) -> None:
        group = replace(Cache.of(12, "strides", Sizes(2, 4, 4, 1, 4, "float32")).group(), tokens_per_block=8)
        with pytest.raises(LayoutError, match="pages that have no row for each token"):
            ChunkRows(group, None, 4, 8)

    def test_rotaries_that_do_not_fit_the_layers(self) -> None:
        group = Cache.of(12, "strides", Sizes(2, 4, 4, 1, 4, "float32")).group()
        rotary = Rotary(table_of(100.0, 6, 8), "neox")
        with pytest.raises(LayoutError, match="1 rotary tables for 2 layers"):
            ChunkRows(group, [rotary], 4, 8)
        with pytest.raises(LayoutError, match="a rotary table for 6 elements and heads of 4"):
            ChunkRows(group, [None, rotary], 4, 8)

    def test_orders_in_which_slots_and_elements_do_not_add_up(self) -> None:
        group = Cache.of(12, "strides", Sizes(1, 4, 4, 2, 4, "float32")).group()
        numbers = np.arange(4 * 2 * 8)
        swapped = numbers.copy()
        swapped[[0, 1]] = 1, 0
        with pytest.raises(LayoutError, match="differs from head to head"):
            KVPlaces.measured(group, swapped, 4)
        both = numbers.reshape(4, 2, 8).copy()
        both[0, :, :2] = both[0, :, 1::-1]
        with pytest.raises(LayoutError, match="not made of an order of slots and one of elements"):
            KVPlaces.measured(group, both.reshape(-1), 4)
        assert KVPlaces.measured(group, numbers, 4) == KVPlaces.by_strides(group, 4)


class TestRotary:
    def test_a_magnitude_is_divided_out(self) -> None:
        plain, scaled = (Rotary(table_of(100.0, 8, 64, magnitude), "neox") for magnitude in (1.0, 1.37))
        assert scaled.magnitude == pytest.approx(1.37)
        for ours, theirs in zip(plain.turn(-13), scaled.turn(-13), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-6)

    def test_a_rounded_table_keeps_the_length_of_pairs(self) -> None:
        rounded = (table_of(10_000.0, 64, 4096, 1.2).view(np.uint32) >> 16 << 16).view(np.float32)
        rotary = Rotary(rounded, "neox")
        for delta in (1, -37, 4095):
            cos, sin = rotary.turn(delta)
            np.testing.assert_allclose(cos**2 + sin**2, 1, atol=1e-6)

    @pytest.mark.parametrize(
        ("table", "reason"),
        [
            (np.zeros((8, 7)), r"shape \(8, 7\)"),
            (np.zeros((8, 0)), r"shape \(8, 0\)"),
            (np.zeros((1, 8)), r"shape \(1, 8\)"),
            (np.zeros(8), r"shape \(8,\)"),
            (np.zeros((8, 8)), "not a rotation"),
            (-table_of(100.0, 8, 8), "not a rotation"),
            (np.repeat([[1.0, 1.0, 0.0, 0.0]], 8, axis=0), "sines are all 0"),
            (table_of(100.0, 8, 8) * np.arange(1, 9)[:, None], "not a rotation"),
            (np.full((8, 8), np.nan), "not finite"),
            (np.full((8, 8), np.inf), "not finite"),
            (np.concatenate([table_of(100.0, 8, 40), table_of(37.0, 8, 40)]), "is not twice position"),
        ],
    )
    def test_a_table_without_a_rotation_is_refused(self, table: Any, reason: str) -> None:
        with pytest.raises(LayoutError, match=reason):
            Rotary(table, "neox")

    def test_an_unknown_style_is_refused(self) -> None:
        with pytest.raises(LayoutError, match="'neox' or 'gptj', not 'both'"):
            Rotary(table_of(100.0, 8, 8), "both")  # type: ignore[arg-type]


class TestTheChoiceOfImplementations:
    GROUP = Cache.of(12, "strides", Sizes(1, 4, 4, 1, 4, "float32")).group()

    @pytest.mark.parametrize(
        ("module", "reason"),
        [
            (None, "is not installed"),
            (SimpleNamespace(), "reads rows by the convention None, not 1"),
            (SimpleNamespace(ROW_READ_ABI=2, read_rows=print), "reads rows by the convention 2, not 1"),
        ],
    )
    def test_numpy_where_what_is_compiled_does_not_fit(
        self, monkeypatch: pytest.MonkeyPatch, module: Any, reason: str
    ) -> None:
        monkeypatch.setitem(sys.modules, "lmcache_native", module)
        assert not ChunkRows(self.GROUP, None, 4, 8).native
        with pytest.raises(RuntimeError, match=reason):
            ChunkRows(self.GROUP, None, 4, 8, "on")


def test_the_order_of_vllm_on_the_cpu_is_known_without_being_seen() -> None:
    cache = Cache.of(12, "transposed", Sizes(layers=1, blocks=4, slots=6, heads=3, row=8, dtype="float32"))
    group = cache.group()
    assert group.places is not None
    assert KVPlaces.transposed(replace(group, places=None), 8) == group.places


def test_a_table_is_read_where_it_lies() -> None:
    table = table_of(100.0, 8, 50)
    for content, dtype in (
        (table, "float32"),
        (table.astype(np.float16), "float16"),
        ((table.view(np.uint32) >> 16).astype(np.uint16), "bfloat16"),
    ):
        room = np.zeros((50, 11), content.dtype)
        room[:, 2:10] = content
        found = Rotary.at(room.ctypes.data, TensorView(dtype, (50, 8), (11, 1), 2), "neox")
        assert np.allclose(found.turn(3)[0], table[3, :4], atol=0.01)
    for wrong in (TensorView("uint8", (50, 8), (11, 1)), TensorView("float32", (5, 5, 8), (55, 11, 1))):
        with pytest.raises(LayoutError, match="is not a rotary table"):
            Rotary.at(0, wrong, "neox")
