"""The order of elements in a block, seen from what layers write; vLLM's own layers are in tests/engine/test_block_layers.py."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_kv_layout import LayoutError, PagedGroup
from lmcache_vllm.element_order import with_order
from lmcache_vllm.kv_caches import KVCaches, WithOrder
from lmcache_vllm.placement import CacheGroup

torch = pytest.importorskip("torch")

BLOCKS, HEADS, SLOTS, WIDTH = 5, 2, 4, 3
ELEMENTS = HEADS * SLOTS * 2 * WIDTH
Order = Callable[[Any], Any]
"""From a block's elements `[slot][head][K, then V]` to its memory."""


def by_slot(rows: Any) -> Any:
    """As the strides say: `[head][slot][K, then V]`."""
    return rows.transpose(0, 1)


def transposed(rows: Any) -> Any:
    """As vLLM has it on the CPU: K of a head with its slots innermost, and then its V."""
    key, value = rows[..., :WIDTH], rows[..., WIDTH:]
    return torch.cat([key.permute(1, 2, 0).reshape(HEADS, -1), value.permute(1, 0, 2).reshape(HEADS, -1)], dim=1)


def shuffled(permutation: list[int]) -> Order:
    return lambda rows: by_slot(rows).flatten()[permutation]


class Layer:
    """Stores KV in an order of its own, divided by a scale."""

    num_kv_heads, head_size = HEADS, WIDTH

    def __init__(self, order: Order, scale: float = 1.0, dtype: Any = torch.float32) -> None:
        self.kv_cache = torch.arange(BLOCKS * ELEMENTS).reshape(BLOCKS, HEADS, SLOTS, 2 * WIDTH).to(dtype)
        self.impl = SimpleNamespace(do_kv_cache_update=self.store)
        self.written: set[int] = set()
        self._order, self._scale = order, scale

    def store(self, layer: Any, key: Any, value: Any, cache: Any, slots: Any) -> None:
        assert cache is self.kv_cache
        blocks = {int(slot) // SLOTS for slot in slots}
        assert len(blocks) == 1
        self.written |= blocks
        rows = torch.cat([key, value], dim=2) / self._scale
        cache[blocks.pop()] = self._order(rows).reshape(cache.shape[1:]).to(cache.dtype)


def observing(layers: Mapping[str, Any], dtype: Any = torch.float32) -> WithOrder:
    return lambda paged, bases, names: with_order(paged, bases, names, layers, dtype)


def group_of(*layers: Layer, dtype: Any = torch.float32) -> PagedGroup:
    """As a worker registers it."""
    names = tuple(f"layer.{number}" for number in range(len(layers)))
    by_name = dict(zip(names, layers, strict=True))
    caches = {name: layer.kv_cache for name, layer in by_name.items()}

    (group,) = KVCaches(caches, (CacheGroup(names, SLOTS),), "HND", observing(by_name, dtype)).groups
    return group.paged


def test_slots_with_rows_of_their_own_do_not_depend_on_blocks() -> None:
    paged = group_of(Layer(by_slot), Layer(by_slot))
    assert (paged.block_slots, paged.order) == (0, "")


def test_another_order_is_named_and_belongs_to_a_block_size() -> None:
    paged = group_of(Layer(transposed), Layer(transposed))
    assert paged.block_slots == SLOTS
    assert len(bytes.fromhex(paged.order)) == 8
    assert paged.order == group_of(Layer(transposed)).order


def test_k_and_v_of_a_token_have_their_places_in_an_order_that_has_some() -> None:
    places = group_of(Layer(transposed)).places
    assert places is not None
    assert (places.key.slots, places.key.elements) == ((0, 1, 2, 3), (0, 4, 8))
    assert (places.value.slots, places.value.elements) == ((12, 15, 18, 21), (0, 1, 2))
    assert group_of(Layer(by_slot)).places is None


def test_an_order_without_places_for_tokens_is_named_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    swapped = [1, 0, *range(2, ELEMENTS)]
    paged = group_of(Layer(shuffled(swapped)))
    assert paged.order
    assert paged.places is None
    assert "tokens of chunks cannot be moved: the order of elements within blocks" in caplog.text


@given(st.permutations(range(ELEMENTS)), st.permutations(range(ELEMENTS)))
def test_orders_have_one_name_when_they_are_one(one: list[int], other: list[int]) -> None:
    names = [(paged := group_of(Layer(shuffled(each)))).order or str(paged.block_slots) for each in (one, one, other)]
    assert names[0] == names[1]
    assert (names[0] == names[2]) == (one == other)


@pytest.mark.parametrize("scale", [0.001, 1.0, 300.0])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_scales_of_quantized_caches_do_not_hide_it(scale: float, dtype: Any) -> None:
    assert group_of(Layer(transposed, scale, dtype)).order == group_of(Layer(transposed)).order


def test_the_cache_is_as_it_was() -> None:
    layers = Layer(transposed), Layer(transposed)
    before = [layer.kv_cache.clone() for layer in layers]
    group_of(*layers)
    for layer, was in zip(layers, before, strict=True):
        assert torch.equal(layer.kv_cache, was)
        assert layer.written == {BLOCKS - 1}


def test_layers_of_a_group_must_agree() -> None:
    first, second = Layer(transposed), Layer(by_slot)
    before = second.kv_cache.clone()
    with pytest.raises(LayoutError, match="layers 0 and 1 of a group keep the elements of a block in different orders"):
        group_of(first, second)
    assert torch.equal(second.kv_cache, before)


class Raises(Layer):
    def store(self, *given: Any) -> None:
        super().store(*given)
        raise RuntimeError("not on this machine")


class WritesNothing(Layer):
    def store(self, *given: Any) -> None:
        pass


class Elsewhere(Layer):
    """Computes with a copy, as layers do whose tensor was moved."""

    def __init__(self, order: Order) -> None:
        super().__init__(order)
        self.registered = self.kv_cache
        self.kv_cache = self.kv_cache.clone()


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (Raises(transposed), "RuntimeError: not on this machine"),
        (WritesNothing(transposed), "what was written does not come back"),
        (SimpleNamespace(kv_cache=Layer(by_slot).kv_cache, num_kv_heads=HEADS, head_size=WIDTH), "no attribute 'impl'"),
    ],
)
def test_an_order_that_cannot_be_seen_leaves_the_block_size(
    layer: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = layer.kv_cache.clone()
    with caplog.at_level(logging.INFO):
        paged = group_of(layer)
    assert (paged.block_slots, paged.order) == (SLOTS, "")
    assert reason in caplog.text
    assert torch.equal(layer.kv_cache, before)


def test_memory_that_is_not_the_registered_one_is_not_written() -> None:
    layer = Elsewhere(transposed)
    mine, registered = layer.kv_cache.clone(), layer.registered
    groups = (CacheGroup(("layer.0",), SLOTS),)
    (group,) = KVCaches({"layer.0": registered}, groups, "HND", observing({"layer.0": layer})).groups
    assert (group.paged.block_slots, group.paged.order) == (SLOTS, "")
    assert torch.equal(layer.kv_cache, mine)
    assert not layer.written


def test_the_order_is_a_fact_of_the_model_name() -> None:
    def facts(order: Order | None, slots: int = SLOTS) -> Any:
        layer = Layer(order or by_slot)
        cache = layer.kv_cache.reshape(-1, HEADS, slots, 2 * WIDTH)
        layer.kv_cache = cache
        observe = observing({"layer.0": layer}) if order else None
        return KVCaches({"layer.0": cache}, (CacheGroup(("layer.0",), slots),), "HND", observe).facts

    found = [facts(by_slot), facts(transposed), facts(None), facts(None, SLOTS // 2)]
    assert all(one != other for place, one in enumerate(found) for other in found[:place])
