"""Last chunks that are not whole (`save_unfull_chunk`)."""

from __future__ import annotations

import ctypes

import pytest
import torch

from engines.local.tests.parts import BLOCK, CHUNK, fill, kv_cache, opened, slots
from lmcache_client.engine_key import PADDING

TOKENS = [(7 * i * i + 3) % 1000 for i in range(2 * CHUNK + BLOCK + 3)]
END = 2 * CHUNK + BLOCK
"""Of whole blocks: a chunk has two."""
THERE, ELSEWHERE = range(6), range(100, 106)


@pytest.mark.parametrize("by_layer", [False, True])
def test_a_tail_is_found_by_the_tokens_that_are_there(by_layer: bool) -> None:
    kv = kv_cache()
    fill(kv, THERE, TOKENS)
    with opened(kv, save_unfull_chunk=True) as engine:
        if by_layer:
            list(engine.store_layer(TOKENS, slot_mapping=slots(THERE)))
        else:
            engine.store(TOKENS, slot_mapping=slots(THERE))
        assert engine.lookup(TOKENS) == END
        assert engine.lookup(TOKENS[:END]) == END
        assert engine.lookup([*TOKENS[: END - 1], 5]) == 2 * CHUNK
        assert engine.lookup([*TOKENS[:END], *range(BLOCK)]) == 2 * CHUNK, "that chunk is whole, and another one"
        found = engine.retrieve(TOKENS, slot_mapping=slots(ELSEWHERE))
        assert found.tolist() == [True] * END + [False] * 3
        for layer in kv:
            assert torch.equal(layer[100 : 100 + END // BLOCK], layer[: END // BLOCK])
            assert not layer[100 + END // BLOCK].any(), "what a tail lacks was written"


def test_a_tail_has_zeros_behind_it() -> None:
    kv = kv_cache()
    for layer in kv:
        layer.fill_(7)
    with opened(kv, save_unfull_chunk=True) as engine:
        engine.store([1] * BLOCK, slot_mapping=slots([3]))
        region = engine._cache.region
        data = ctypes.string_at(region.address, region.length)
        sevens = bytes(torch.full((1,), 7, dtype=torch.bfloat16).view(torch.uint8).tolist())
        assert data.count(sevens) == sum(layer[3].numel() for layer in kv)


def test_tails_are_whole_blocks_and_prompts_of_less_have_none() -> None:
    with opened(kv_cache(), save_unfull_chunk=True) as engine:
        engine.store([1] * (BLOCK - 1), slot_mapping=slots([3]))
        assert engine.lookup([1] * (BLOCK - 1)) == 0
        assert engine.status()["l1"]["cached"] == 0
    with opened(kv_cache()) as engine:
        engine.store([1] * BLOCK, slot_mapping=slots([3]))
        assert engine.status()["l1"]["cached"] == 0, "without save_unfull_chunk"


def test_a_token_that_marks_what_is_missing_is_refused() -> None:
    with (
        opened(kv_cache(), save_unfull_chunk=True) as engine,
        pytest.raises(ValueError, match="cannot be a model"),
    ):
        engine.lookup([1] * BLOCK + [PADDING] * BLOCK)
