"""`clear` of a prompt, the hot cache, segments, and an engine without tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engines.local.tests.parts import CHUNK, config, fill, kv_cache, metadata, opened, slots
from lmcache_client import ConfigError
from lmcache_engine import (
    CacheEngineKey,
    ChunkedTokenDatabase,
    CreateGPUConnector,
    EngineType,
    LMCacheEngine,
    SegmentTokenDatabase,
)

TOKENS = [(7 * i * i + 3) % 1000 for i in range(4 * CHUNK)]
THERE = range(8)


def test_the_chunks_of_a_prompt_are_cleared_and_others_stay() -> None:
    kv = kv_cache()
    with opened(kv) as engine:
        other = [*TOKENS[: 2 * CHUNK], *range(CHUNK)]
        for tokens in (TOKENS, other):
            fill(kv, THERE, tokens)
            engine.store(tokens, slot_mapping=slots(THERE))
        assert engine.clear([*other, 5]) == 3
        assert engine.lookup(TOKENS) == 0, "it shared its beginning"
        engine.store(TOKENS[: 2 * CHUNK], slot_mapping=slots(THERE))
        assert engine.lookup(TOKENS) == 4 * CHUNK
        assert engine.lookup(TOKENS, pin=True, lookup_id="held") == 4 * CHUNK
        assert engine.clear(TOKENS) == 0, "it is in use"
        engine.lookup_unpin("held")
        assert engine.clear(TOKENS, request_configs={"lmcache.cache_salt": "t"}) == 0
        with pytest.raises(ValueError, match="only LocalCPUBackend"):
            engine.clear(TOKENS, locations=["RemoteBackend"])
        assert engine.clear(TOKENS, locations=["LocalCPUBackend"]) == 4


def test_without_a_hot_cache_and_other_tiers_nothing_is_kept() -> None:
    kv = kv_cache()
    fill(kv, THERE, TOKENS)
    with opened(kv) as engine:
        engine.store(TOKENS, slot_mapping=slots(THERE))
        engine.set_hot_cache(False)
        assert engine.lookup(TOKENS) == 0
        engine.store(TOKENS, slot_mapping=slots(THERE))
        assert engine.lookup(TOKENS) == 0
        engine.set_hot_cache(True)
        engine.store(TOKENS, slot_mapping=slots(THERE))
        assert engine.lookup(TOKENS) == 4 * CHUNK


def test_without_a_hot_cache_memory_is_a_buffer_for_other_tiers(tmp_path: Path) -> None:
    kv = kv_cache()
    fill(kv, THERE, TOKENS)
    with opened(kv, local_disk=str(tmp_path / "kv"), max_local_disk_size=0.1) as engine:
        engine.set_hot_cache(False)
        assert engine.status()["policies"]["store"] == "skip_l1", engine.status()["policies"]
        engine.store(TOKENS, slot_mapping=slots(THERE))
        engine.set_hot_cache(True)
        assert engine.status()["policies"]["store"] == "default"
        assert engine.lookup(TOKENS) == 4 * CHUNK, "from files, or not yet gone"


SEPARATOR = [9, 9]


def encode(text: str) -> list[int]:
    assert text == " # # "
    return SEPARATOR


def test_segments_have_names_of_their_own_wherever_they_are() -> None:
    database = SegmentTokenDatabase(config(), metadata(), encode)
    tokens = [1, 2, 3, *SEPARATOR, 4, 5, *SEPARATOR, *SEPARATOR, 1, 2, 3]
    found: Any = list(database.process_tokens(tokens))
    assert [(start, end) for start, end, _ in found] == [(0, 3), (5, 7), (11, 14)]
    first, second, third = (key for _, _, key in found)
    assert isinstance(first, CacheEngineKey)
    assert first == third != second
    assert first.model_name == "tiny##blend", "it is approximate, and no prefix has such a key"
    (chunk,) = ChunkedTokenDatabase(config(chunk_size=3)).process_tokens([1, 2, 3], make_key=False)
    assert chunk[2] == first.chunk_hash, "of the same tokens"
    mask = [False] * 4 + [True] * (len(tokens) - 4)
    assert [start for start, _, _ in database.process_tokens(tokens, mask, make_key=False)] == [5, 11]
    assert list(database.process_tokens(SEPARATOR)) == []


def test_segments_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(ValueError, match="a separator has at least one token"):
        SegmentTokenDatabase(config(), metadata(), lambda text: [])
    with pytest.raises(ValueError, match="needs the model's tokenizer: give encode="):
        SegmentTokenDatabase(config(), metadata(model_name="/nothing/here"))
    database = SegmentTokenDatabase(config(), None, encode)
    with pytest.raises(ValueError, match="a key needs metadata"):
        list(database.process_tokens([1]))
    with pytest.raises(ValueError, match="a mask of 2 for 1 tokens"):
        list(database.process_tokens([1], [True, True]))
    wrong: Any = database
    with pytest.raises(ValueError, match="use ChunkedTokenDatabase"):
        LMCacheEngine(config(), metadata(), wrong)


def test_a_mock_has_no_tensors_and_meets_no_other_connector() -> None:
    made, about = config(save_unfull_chunk=True), metadata()
    mock = CreateGPUConnector(made, about, EngineType.MOCK)
    engine = LMCacheEngine(made, about, ChunkedTokenDatabase(made, about), mock)
    try:
        tokens = [*TOKENS, 1, 2, 3]
        engine.post_init(kvcaches="whatever")
        engine.store(tokens, slot_mapping=range(len(tokens)))
        assert engine.lookup(tokens) == len(tokens)
        assert engine.retrieve(tokens, slot_mapping=range(len(tokens))).all()
        *_, mask = engine.retrieve_layer(tokens, slot_mapping=range(len(tokens)))
        assert mask.all()
        list(engine.store_layer([7, *tokens], slot_mapping=range(len(tokens) + 1)))
        assert engine.lookup([7, *tokens]) == len(tokens) + 1
    finally:
        engine.close()
    assert mock.suffix == "##mock"


def test_an_unknown_engine_is_refused() -> None:
    wrong: Any = "nope"
    with pytest.raises((ValueError, ConfigError), match="nope"):
        CreateGPUConnector(config(), metadata(), wrong)
