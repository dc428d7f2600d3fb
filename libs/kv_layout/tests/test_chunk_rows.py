"""Tokens of a chunk are in the pages as the model would have computed them at their new position; nothing else changes."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from libs.kv_layout.tests.implementations import OF_ROWS
from libs.kv_layout.tests.reference_pages import ReferencePages, Sizes, expected_objects
from libs.kv_layout.tests.reference_rows import (
    NUMBERS,
    ORDERS,
    ROUNDING,
    Bits,
    Cache,
    random_bits,
    table_of,
    turned_exactly,
)
from libs.kv_layout.tests.test_round_trips import presentations
from lmcache_kv_layout import ChunkRows, KVPlaces, LayoutError, PagedGroup, Rotary, TensorView

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


@dataclass(frozen=True)
class Case:
    """Tokens of a chunk, those of a request's blocks, and how they are moved from one to the other."""

    cache: Cache
    per_object: int
    blocks: list[int]
    tokens: range
    target: int
    delta: int
    rotaries: list[tuple[float, Rotary | None]]
    layers: range
    seed: int

    def rows(self, group: PagedGroup, implementation: str) -> ChunkRows:
        turned_by, chunk_tokens = (
            [rotary for _, rotary in self.rotaries],
            self.per_object * self.cache.pages.sizes.slots,
        )
        return ChunkRows(group, turned_by, self.cache.size, chunk_tokens, implementation)  # type: ignore[arg-type]

    @property
    def stored(self) -> Bits:
        return self._numbers(self.per_object, self.seed)

    @property
    def others(self) -> Bits:
        """Of all blocks."""
        return self._numbers(len(self.blocks), self.seed + 1)

    def _numbers(self, blocks: int, seed: int) -> Bits:
        sizes = self.cache.pages.sizes
        return random_bits((2, sizes.layers, blocks, sizes.slots, sizes.heads, self.cache.size), sizes.dtype, seed)

    def chunk_of(self, stored: Bits) -> NDArray[np.uint8]:
        (chunk,) = expected_objects(self.cache.encode(stored), list(range(self.per_object)), self.per_object)
        return chunk

    @property
    def taken(self) -> slice:
        """Of the chunk."""
        return slice(self.tokens.start, self.tokens.stop)

    @property
    def there(self) -> slice:
        """Of the request."""
        return slice(self.target, self.target + len(self.tokens))

    @property
    def nbytes(self) -> int:
        row = self.cache.pages.sizes.heads * self.cache.size * self.cache.item.itemsize
        return 2 * len(self.layers) * len(self.tokens) * row

    def check(self, found: Bits, there: slice, before: Bits, source: Bits, taken: slice) -> None:
        """`found` is `before`, and in `there` what `source` has in `taken`, turned."""
        dtype = self.cache.pages.sizes.dtype
        by_token = (2, before.shape[1], -1, *before.shape[4:])
        found, source, expected = found.reshape(by_token), source.reshape(by_token), before.reshape(by_token).copy()
        changed = slice(self.layers.start, self.layers.stop)
        expected[1, changed, there] = source[1, changed, taken]
        for layer in self.layers:
            base, rotary = self.rotaries[layer]
            keys = source[0, layer, taken]
            if rotary is None or self.delta == 0:
                expected[0, layer, there] = keys
                continue
            exact = turned_exactly(NUMBERS[dtype](keys).astype(np.float64), base, rotary, self.delta)
            got = NUMBERS[dtype](found[0, layer, there]).astype(np.float64)
            spread = 4e-7 * np.abs(exact).max(axis=-1, keepdims=True, initial=0) * 8
            assert (np.abs(got - exact) <= ROUNDING[dtype] * np.abs(exact) + spread + 2.0**-25).all()
            untouched = slice(rotary.rotary_dim, None)
            assert np.array_equal(found[0, layer, there, :, untouched], keys[..., untouched])
            expected[0, layer, there] = found[0, layer, there]
        assert np.array_equal(found, expected)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    cache, per_object = draw(caches()), draw(st.integers(1, 3))
    slots, layers = cache.pages.sizes.slots, cache.pages.sizes.layers
    blocks = draw(st.permutations(range(cache.pages.sizes.blocks)))
    start = draw(st.integers(0, per_object * slots))
    tokens = range(start, draw(st.integers(start, per_object * slots)))
    target = draw(st.integers(0, len(blocks) * slots - len(tokens)))
    delta = draw(st.integers(1 - POSITIONS, POSITIONS - 1))
    drawn = draw(rotaries(layers, cache.size))
    first = draw(st.integers(0, layers))
    chosen = range(first, draw(st.integers(first, layers)))
    return Case(cache, per_object, blocks, tokens, target, delta, drawn, chosen, draw(st.integers(0, 2**32 - 1)))


@pytest.mark.parametrize("implementation", OF_ROWS)
class TestMoves:
    @settings(max_examples=200, deadline=None)
    @given(case=cases())
    def test_what_is_read_is_what_float64_says(self, implementation: str, case: Case) -> None:
        pages, group = case.cache.pages, case.cache.group()
        chunk, before = case.chunk_of(case.stored), case.others
        pages.fill(case.cache.encode(before))
        kept, outside = chunk.copy(), pages.outside()

        written = case.rows(group, implementation).read(
            pages.bases(group),
            case.blocks,
            chunk.ctypes.data,
            case.tokens,
            case.target,
            case.delta,
            layers=case.layers,
        )

        assert np.array_equal(chunk, kept)
        assert pages.outside() == outside, "bytes between the pages were written"
        assert written == case.nbytes
        found = case.cache.decode(pages.content())[:, :, case.blocks]
        case.check(found, case.there, before[:, :, case.blocks], case.stored, case.taken)

    @settings(max_examples=200, deadline=None)
    @given(case=cases())
    def test_what_is_written_is_what_float64_says(self, implementation: str, case: Case) -> None:
        pages, group = case.cache.pages, case.cache.group()
        chunk, before = case.chunk_of(case.stored), case.stored
        pages.fill(case.cache.encode(case.others))
        kept, outside, content = chunk.nbytes, pages.outside(), pages.content()
        room = np.full(kept + 128, 0xA5, np.uint8)
        room[64:-64] = chunk

        written = case.rows(group, implementation).write(
            pages.bases(group),
            case.blocks,
            room.ctypes.data + 64,
            case.tokens,
            case.target,
            case.delta,
            layers=case.layers,
        )

        assert np.array_equal(pages.content(), content)
        assert pages.outside() == outside
        assert (room[:64] == 0xA5).all(), "bytes before the chunk were written"
        assert (room[-64:] == 0xA5).all(), "bytes behind the chunk were written"
        assert written == case.nbytes
        found = case.cache.decode(room[64:-64].reshape(case.cache.encode(before).shape))
        case.check(found, case.taken, before, case.others[:, :, case.blocks], case.there)

    def test_a_turn_of_no_positions_keeps_every_bit(self, implementation: str) -> None:
        cache = Cache.of(12, "transposed", Sizes(1, 4, 4, 2, 8, "bfloat16"))
        group, pages = cache.group(), cache.pages
        chunk = np.arange(4 * 2 * 16, dtype=np.uint16) + 0x7F80  # infinities and NaN among them
        again = np.zeros_like(chunk)
        rows = ChunkRows(group, Rotary(table_of(100.0, 8, 9), "neox"), 8, 4, implementation)  # type: ignore[arg-type]
        rows.read(pages.bases(group), [2], chunk.ctypes.data, range(4), 0, 0)
        assert np.array_equal(pages.content()[:, :, 2].reshape(-1).view(np.uint16), chunk)
        rows.write(pages.bases(group), [2], again.ctypes.data, range(4), 0, 0)
        assert np.array_equal(again, chunk)

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
    @pytest.mark.parametrize("way", ["read", "write"])
    def test_nothing_is_written_where_something_is_wrong(
        self, implementation: str, wrong: dict[str, Any], reason: str, way: str
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
        move = getattr(rows, way)
        given = {**arguments, **wrong}
        layers = given.pop("layers", None)
        with pytest.raises(LayoutError, match=reason):
            move(*given.values(), layers=layers)
        assert np.array_equal(pages.content(), before)
        assert (chunk == 1).all()
        assert move(*arguments.values()) == 2 * 2 * 6 * 4 * 4


@pytest.mark.skipif("on" not in OF_ROWS, reason="lmcache-native is not installed")
@settings(max_examples=60, deadline=None)
@given(
    order=st.sampled_from(ORDERS),
    dtype=st.sampled_from(list(NUMBERS)),
    slots=st.sampled_from([8, 18, 32]),
    size=st.sampled_from([16, 32, 40]),
    heads=st.sampled_from([1, 3]),
    style=st.sampled_from(["neox", "gptj"]),
    data=st.data(),
)
def test_both_implementations_write_the_same_bits(
    order: str, dtype: str, slots: int, size: int, heads: int, style: Any, data: Any
) -> None:
    """Of any bits, infinities and subnormal numbers among them; where one has NaN, the other has one."""
    cache = Cache.of(data.draw(st.sampled_from([2, 12, 13])), order, Sizes(1, 4, slots, heads, size, dtype))
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
        back = kept.copy()
        rows.write(pages.bases(group), [0, 3, 2, 1], back.ctypes.data, tokens, target, -delta)
        for content in (pages.content(), back.reshape(group.kv_axis, 1, 2, slots, heads, -1)):
            bits = cache.decode(content)
            found.append(np.where(np.isnan(NUMBERS[dtype](bits)), 0, bits))
    assert np.array_equal(found[0], found[2])
    assert np.array_equal(found[1], found[3])


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
            (SimpleNamespace(), "moves rows by the convention None, not 1"),
            (SimpleNamespace(ROW_MOVE_ABI=2, read_rows=print), "moves rows by the convention 2, not 1"),
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
