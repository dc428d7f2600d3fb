"""Chunks are stored and found again, byte for byte, and what cannot be meant is refused."""

from __future__ import annotations

import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.local.tests.parts import BLOCK, BLOCKS, CHUNK, config, fill, kv_cache, metadata, opened, slots
from lmcache_client import LMCacheError
from lmcache_engine import LMCacheEngineBuilder

TOKENS = [(7 * i * i + 3) % 1000 for i in range(4 * CHUNK + 5)]
THERE, ELSEWHERE = range(10), range(100, 110)
"""Blocks for all of them."""


def test_what_was_stored_is_copied_back_byte_for_byte() -> None:
    kv = kv_cache()
    fill(kv, THERE, TOKENS)
    with opened(kv) as engine:
        assert engine.lookup(TOKENS) == 0
        engine.store(torch.tensor(TOKENS), slot_mapping=slots(THERE))
        assert engine.lookup(TOKENS) == 4 * CHUNK
        assert engine.lookup(TOKENS[: 2 * CHUNK + 3] + [999]) == 2 * CHUNK
        mask = engine.retrieve(TOKENS, slot_mapping=slots(ELSEWHERE))
        assert mask.tolist() == [True] * 4 * CHUNK + [False] * 5
        whole = 4 * CHUNK // BLOCK
        for layer in kv:
            assert torch.equal(layer[ELSEWHERE.start : ELSEWHERE.start + whole], layer[:whole])
            assert not layer[ELSEWHERE.start + whole].any(), "what is behind the last chunk was written"


def test_a_mask_leaves_chunks_out() -> None:
    kv = kv_cache()
    fill(kv, THERE, TOKENS)
    with opened(kv) as engine:
        mask = torch.ones(len(TOKENS), dtype=torch.bool)
        mask[: 2 * CHUNK] = False
        engine.store(TOKENS, mask=mask, slot_mapping=slots(THERE))
        assert engine.lookup(TOKENS) == 0, "the first chunks were not to be stored"
        found = engine.retrieve(TOKENS, mask=mask, slot_mapping=slots(ELSEWHERE))
        assert found.nonzero().flatten().tolist() == list(range(2 * CHUNK, 4 * CHUNK))
        assert not kv[0][ELSEWHERE.start].any()
        mask[2 * CHUNK] = False
        with pytest.raises(ValueError, match="Falses in mask must be multiple of chunk_size"):
            engine.retrieve(TOKENS, mask=mask, slot_mapping=slots(ELSEWHERE))


def test_other_tags_tenants_models_and_workers_find_nothing() -> None:
    kv = kv_cache()
    fill(kv, THERE, TOKENS)
    with opened(kv) as engine:
        engine.store(TOKENS, slot_mapping=slots(THERE), request_configs={"lmcache.tag.user": "a"})
        assert engine.lookup(TOKENS, request_configs={"lmcache.tag.user": "a"}) == 4 * CHUNK
        for other in (None, {"lmcache.tag.user": "b"}, {"lmcache.tag.user": "a", "lmcache.cache_salt": "t"}):
            assert engine.lookup(TOKENS, request_configs=other) == 0


def test_a_frozen_cache_stores_nothing_until_that_is_undone() -> None:
    kv = kv_cache()
    fill(kv, THERE, TOKENS)
    with opened(kv) as engine:
        engine.freeze(True)
        engine.store(TOKENS, slot_mapping=slots(THERE))
        assert engine.is_frozen()
        assert engine.lookup(TOKENS) == 0
        engine.freeze(False)
        engine.store(TOKENS, slot_mapping=slots(THERE))
        assert not engine.is_frozen()
        assert engine.lookup(TOKENS) == 4 * CHUNK


def test_what_is_pinned_stays_until_it_is_not(caplog: pytest.LogCaptureFixture) -> None:
    kv = kv_cache()
    with opened(kv, max_local_cpu_size=0.001) as engine:  # 1 MiB: 200 objects of a header page and a chunk of 4 KiB
        fill(kv, THERE, TOKENS)
        engine.store(TOKENS, slot_mapping=slots(THERE))
        assert engine.lookup(TOKENS, pin=True, lookup_id="held") == 4 * CHUNK
        for other in range(100):
            engine.store([other * 31 + i for i in range(4 * CHUNK)], slot_mapping=slots(THERE))
        assert engine.lookup(TOKENS) == 4 * CHUNK
        assert engine.clear() > 0
        assert engine.lookup(TOKENS) == 4 * CHUNK
        engine.lookup_unpin("held")
        assert engine.clear() == 4
        assert engine.lookup(TOKENS) == 0
        engine.lookup_unpin("held")


def test_a_clear_leaves_what_is_pinned() -> None:
    kv = kv_cache()
    with opened(kv) as engine:
        engine.store(TOKENS, slot_mapping=slots(THERE))
        there = engine.lookup(TOKENS, pin=True, lookup_id="one")
        assert there
        assert engine.clear() == engine.clear(TOKENS) == 0
        assert engine.lookup(TOKENS) == there
        engine.lookup_unpin("one")
        assert engine.clear() == there // CHUNK
        assert engine.lookup(TOKENS) == 0


def test_threads_that_store_clear_and_retrieve_one_prompt_at_once_copy_its_bytes_or_nothing() -> None:
    kv = kv_cache()
    fill(kv, THERE, TOKENS)
    wanted = [layer[list(THERE)].clone() for layer in kv]
    wrong: list[object] = []
    deadline = time.monotonic() + 1.5

    def store() -> None:
        while time.monotonic() < deadline:
            engine.store(TOKENS, slot_mapping=slots(THERE))
            engine.clear()

    def retrieve(first: int) -> int:
        blocks, found = list(range(first, first + len(THERE))), 0
        while time.monotonic() < deadline:
            for layer in kv:
                layer[blocks] = 0
            count = int(engine.retrieve(TOKENS, slot_mapping=slots(blocks)).sum()) // BLOCK
            found += count
            for layer, right in zip(kv, wanted, strict=True):
                if not torch.equal(layer[blocks[:count]], right[:count]) or layer[blocks[count:]].any():
                    wrong.append(count)
        return found

    with opened(kv) as engine, ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(store) for _ in range(2)]
        found = [pool.submit(retrieve, first) for first in (64, 128)]
        for each in calls:
            each.result(30)
        assert sum(each.result(30) for each in found) > 0
        assert not wrong
        assert engine.status()["l1"]["held"] == 0


def test_memory_that_is_full_of_what_is_in_use_takes_a_part(caplog: pytest.LogCaptureFixture) -> None:
    kv = kv_cache()
    with opened(kv, max_local_cpu_size=0.001) as engine:
        blocks = range(BLOCKS)
        first, second = [[1 + k + i * 3 for i in range(BLOCKS * BLOCK)] for k in (0, 1)]
        engine.store(first, slot_mapping=slots(blocks))
        found = engine.lookup(first, pin=True, lookup_id="all")
        assert found > 0
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            engine.store(second, slot_mapping=slots(blocks))
        assert "Local cpu memory under pressure, partial store" in caplog.messages
        assert engine.lookup(second) < len(second)
        assert engine.lookup(first) == found


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ({"slot_mapping": slots(range(7))}, "slot_mapping has 56 slots"),
        ({"slot_mapping": slots(range(BLOCKS - 4, BLOCKS + 8))}, f"the KV cache has {BLOCKS}"),
        ({"slot_mapping": slots(range(-9, 3))}, "the KV cache has"),
        ({"slot_mapping": slots(THERE) + 1}, "are one block of the KV cache, in order"),
        ({"slot_mapping": slots(THERE).float()}, "integers in one dimension"),
        ({"slot_mapping": torch.tensor(5)}, "integers in one dimension"),
        ({"slot_mapping": 5}, "integers in one dimension"),
        ({"slot_mapping": slots(THERE) + 2**62}, f"the KV cache has {BLOCKS}"),
        ({"slot_mapping": [2**70] * len(TOKENS)}, "integers in one dimension"),
        ({}, "slot_mapping is missing"),
        ({"slot_mapping": slots(THERE), "layer": 1}, "unknown argument 'layer'"),
        ({"slot_mapping": slots(THERE), "mask": torch.ones(3)}, "a mask of 3 for 69 tokens"),
        ({"slot_mapping": slots(THERE), "request_configs": {"lmcache.tag.a": "x@y"}}, "neither has '@' or '%'"),
    ],
)
def test_calls_that_cannot_be_meant_are_refused_and_store_nothing(call: dict[str, Any], said: str) -> None:
    with opened(kv_cache()) as engine:
        with pytest.raises(ValueError, match=said):
            engine.store(TOKENS, **call)
        counts = engine.status()["l1"]
        assert counts["cached"] == counts["held"] == 0


@pytest.mark.parametrize("tokens", [[1.5], [[1, 2]], ["a"], [-1] * CHUNK, [2**70] * CHUNK, [2**40] * CHUNK])
def test_what_is_not_token_ids_is_refused(tokens: list[Any]) -> None:
    with opened(kv_cache()) as engine, pytest.raises(ValueError, match="token"):
        engine.lookup(tokens)


def test_tensors_of_another_shape_than_the_metadata_are_refused() -> None:
    with opened(about=metadata(kv_shape=(3, 2, CHUNK, 2, 16))) as engine, pytest.raises(ValueError, match="kv_shape"):
        engine.post_init(kvcaches=kv_cache())
    with opened(about=metadata(kv_dtype="float16")) as engine, pytest.raises(ValueError, match="bfloat16"):
        engine.post_init(kvcaches=kv_cache())
    with opened(chunk_size=12) as engine, pytest.raises(ValueError, match="multiple of the engine's block size"):
        engine.post_init(kvcaches=kv_cache())


def test_the_builder_has_one_engine_for_each_id() -> None:
    first = LMCacheEngineBuilder.get_or_create("one", config(), metadata())
    try:
        assert LMCacheEngineBuilder.get_or_create("one", config(), metadata()) is first
        assert LMCacheEngineBuilder.get("one") is first
        with pytest.raises(ValueError, match=r"metadata\.model_name='tiny'.*'other'"):
            LMCacheEngineBuilder.get_or_create("one", config(), metadata(model_name="other"))
        with pytest.raises(ValueError, match="cache_policy"):
            LMCacheEngineBuilder.get_or_create("one", config(cache_policy="FIFO"), metadata())
    finally:
        LMCacheEngineBuilder.destroy("one")
    assert LMCacheEngineBuilder.get("one") is None
    LMCacheEngineBuilder.destroy("one")


def test_after_a_fork_every_call_raises_in_the_child() -> None:
    with opened(kv_cache()) as engine:
        calls = [
            lambda: engine.lookup(TOKENS),
            lambda: engine.store(TOKENS, slot_mapping=slots(THERE)),
            lambda: engine.retrieve(TOKENS, slot_mapping=slots(THERE)),
            lambda: engine.lookup_unpin("x"),
            engine.clear,
            engine.is_healthy,
            engine.status,
            engine.close,
        ]
        child = os.fork()
        if not child:
            raised = 0
            for call in calls:
                try:
                    call()
                except LMCacheError:
                    raised += 1
                except BaseException:  # noqa: BLE001 - it counts as none that was raised
                    pass
            os._exit(raised)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(calls)
        assert engine.lookup(TOKENS) == 0, "the parent goes on"


def test_another_process_finds_in_files_what_this_one_stored(tmp_path: Path) -> None:
    kv = kv_cache()
    fill(kv, THERE, TOKENS)
    on_disk: dict[str, Any] = {"local_disk": str(tmp_path / "kv"), "max_local_disk_size": 0.1}
    with opened(kv, **on_disk) as engine:
        engine.store(TOKENS, slot_mapping=slots(THERE))
    again = kv_cache()
    with opened(again, **on_disk) as engine:
        assert engine.lookup(TOKENS) == 4 * CHUNK
        assert engine.retrieve(TOKENS, slot_mapping=slots(THERE)).sum() == 4 * CHUNK
        whole = 4 * CHUNK // BLOCK
        assert all(torch.equal(mine[:whole], stored[:whole]) for mine, stored in zip(again, kv, strict=True))
        assert engine.clear() == 4
        assert engine.lookup(TOKENS) == 4 * CHUNK, "files stay"


def test_a_store_of_the_lm_protocol_is_a_tier() -> None:
    pytest.importorskip("lmcache_l2_lm")
    from plugins.l2_lm.tests.running import running

    kv = kv_cache()
    fill(kv, THERE, TOKENS)
    with running() as store:
        remote: dict[str, Any] = {"remote_url": f"lm://127.0.0.1:{store.port}"}
        with opened(kv, **remote) as engine:
            engine.store(TOKENS, slot_mapping=slots(THERE))
        assert store.values.stats().values == 4
        again = kv_cache()
        with opened(again, **remote) as engine:
            assert engine.lookup(TOKENS) == 4 * CHUNK
            assert engine.retrieve(TOKENS, slot_mapping=slots(THERE)).sum() == 4 * CHUNK
        whole = 4 * CHUNK // BLOCK
        assert all(torch.equal(mine[:whole], stored[:whole]) for mine, stored in zip(again, kv, strict=True))
