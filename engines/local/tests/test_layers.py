"""Layer by layer: the same bytes, visible when whole, and nothing left of what was dropped."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from engines.local.tests.parts import BLOCK, CHUNK, LAYERS, fill, kv_cache, opened, slots
from lmcache_client import LMCacheError

TOKENS = [(7 * i * i + 3) % 1000 for i in range(4 * CHUNK + 5)]
THERE, ELSEWHERE = range(10), range(100, 110)
WHOLE = 4 * CHUNK // BLOCK


def test_layers_arrive_one_by_one_and_chunks_are_visible_when_all_are_there() -> None:
    kv = kv_cache()
    with opened(kv) as engine:
        storing = engine.store_layer(TOKENS, slot_mapping=slots(THERE))
        fill(kv, THERE, TOKENS)
        for layer in range(LAYERS):
            assert engine.lookup(TOKENS) == 0, "visible before it is whole"
            next(storing)
            kv[layer][:WHOLE].add_(1)  # what comes later is not copied
        assert engine.lookup(TOKENS) == 0
        next(storing)
        assert engine.lookup(TOKENS) == 4 * CHUNK
        assert not list(storing), "there is nothing behind it"
        right = kv_cache()
        fill(right, THERE, TOKENS)
        loading = engine.retrieve_layer(TOKENS, slot_mapping=slots(ELSEWHERE))
        for layer in range(LAYERS):
            assert not kv[layer][ELSEWHERE.start].any(), "copied before it was asked for"
            assert next(loading) is None
            assert torch.equal(kv[layer][ELSEWHERE.start : ELSEWHERE.start + WHOLE], right[layer][:WHOLE])
        assert next(loading) is None
        assert engine.clear() == 4, "released behind the last layer"
        assert next(loading).tolist() == [True] * 4 * CHUNK + [False] * 5
        assert not kv[0][ELSEWHERE.start + WHOLE].any()


@pytest.mark.parametrize("steps", range(LAYERS + 1))
@pytest.mark.parametrize("end", ["close", "drop", "throw"])
def test_a_store_that_is_dropped_half_way_gives_its_slots_back(steps: int, end: str) -> None:
    kv = kv_cache()
    fill(kv, THERE, TOKENS)
    with opened(kv) as engine:
        storing = engine.store_layer(TOKENS, slot_mapping=slots(THERE))
        for _ in range(steps):
            next(storing)
        if end == "throw":
            with pytest.raises(KeyError):
                storing.throw(KeyError)
        elif end == "close":
            storing.close()
        del storing
        gc.collect()
        counts = engine.status()["l1"]
        assert (counts["held"], counts["cached"], counts["quarantined"]) == (0, 0, 0)
        assert counts["state_counts_add_up"]
        engine.store(TOKENS, slot_mapping=slots(THERE))
        assert engine.lookup(TOKENS) == 4 * CHUNK


@pytest.mark.parametrize("steps", range(LAYERS + 2))
def test_a_retrieve_that_is_dropped_half_way_releases_all(steps: int) -> None:
    kv = kv_cache()
    fill(kv, THERE, TOKENS)
    with opened(kv) as engine:
        engine.store(TOKENS, slot_mapping=slots(THERE))
        loading = engine.retrieve_layer(TOKENS, slot_mapping=slots(ELSEWHERE))
        for _ in range(steps):
            next(loading)
        loading.close()
        assert engine.status()["l1"]["held"] == 0
        assert engine.clear() == 4


def test_what_one_stores_another_one_does_not_store_meanwhile() -> None:
    kv = kv_cache()
    fill(kv, THERE, TOKENS)
    with opened(kv) as engine:
        one, other = (engine.store_layer(TOKENS, slot_mapping=slots(THERE)) for _ in range(2))
        next(one), next(other)
        assert engine.status()["l1"]["held"] == 4
        list(other)
        assert engine.lookup(TOKENS) == 0
        list(one)
        assert engine.lookup(TOKENS) == 4 * CHUNK


def test_nothing_found_is_a_mask_without_a_true() -> None:
    kv = kv_cache()
    with opened(kv) as engine:
        *nothing, mask = engine.retrieve_layer(TOKENS, slot_mapping=slots(ELSEWHERE))
        assert nothing == [None] * (LAYERS + 1)
        assert not mask.any()


def test_masks_and_faults_are_those_of_whole_stores() -> None:
    kv = kv_cache()
    fill(kv, THERE, TOKENS)
    with opened(kv) as engine:
        mask = torch.arange(len(TOKENS)) >= 2 * CHUNK
        for _ in engine.store_layer(TOKENS, mask=mask, slot_mapping=slots(THERE)):
            pass
        *_, found = engine.retrieve_layer(TOKENS, mask=mask, slot_mapping=slots(ELSEWHERE))
        assert found.nonzero().flatten().tolist() == list(range(2 * CHUNK, 4 * CHUNK))
        with pytest.raises(ValueError, match="Falses in mask"):
            engine.store_layer(TOKENS, mask=torch.arange(len(TOKENS)) >= 3, slot_mapping=slots(THERE))
        with pytest.raises(ValueError, match="slot_mapping is missing"):
            engine.retrieve_layer(TOKENS)
        broken: Any = engine.store_layer(TOKENS[:CHUNK] + [5] * CHUNK, slot_mapping=slots(range(1000, 1010)))
        with pytest.raises(ValueError, match="the KV cache has"):
            next(broken)
        assert engine.status()["l1"]["held"] == 0


def test_nothing_is_copied_once_the_engine_is_closed() -> None:
    kv = kv_cache()
    fill(kv, THERE, TOKENS)
    with opened(kv) as engine:
        engine.store(TOKENS, slot_mapping=slots(THERE))
        storing = engine.store_layer([1, *TOKENS], slot_mapping=slots(THERE))
        loading = engine.retrieve_layer(TOKENS, slot_mapping=slots(ELSEWHERE))
        next(storing), next(loading)
        assert engine.close()
        for generator in (storing, loading):
            with pytest.raises(LMCacheError, match="closed"):
                next(generator)
        with pytest.raises(LMCacheError, match="closed"):
            engine.retrieve(TOKENS, slot_mapping=slots(ELSEWHERE))
        with pytest.raises(LMCacheError, match="closed"):
            engine.lookup(TOKENS)
        assert not engine.is_healthy()
        assert engine.health() == 1
        assert engine.close()
