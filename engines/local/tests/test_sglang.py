"""The interface that SGLang had: pools of slots, whole and layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lmcache_client import LMCacheError
from lmcache_client.errors import ConfigError
from lmcache_engine import (
    LMCacheConnector,
    LMCacheEngine,
    LMCacheEngineBuilder,
    LoadMetadata,
    StoreMetadata,
)
from lmcache_engine.sglang import ENGINE_NAME

LAYERS, HEADS, SIZE, CHUNK, SLOTS = 3, 2, 8, 16, 515
TOKENS = [(7 * i * i + 3) % 1000 for i in range(4 * CHUNK + 5)]
WHOLE = 4 * CHUNK
THERE = torch.randperm(250, generator=torch.Generator().manual_seed(3))[: len(TOKENS)]
ELSEWHERE = 255 + torch.randperm(250, generator=torch.Generator().manual_seed(4))[: len(TOKENS)]
"""Slots in any order, not by pages."""


def config_of(arch: str = "MHA") -> Any:
    return SimpleNamespace(
        model_path="tiny",
        num_hidden_layers=LAYERS,
        head_dim=SIZE,
        get_num_kv_heads=lambda tp_size: HEADS // tp_size,
        attention_arch=SimpleNamespace(name=arch),
    )


def pools(heads: int = HEADS, size: int = SIZE) -> list[torch.Tensor]:
    return [torch.randn(SLOTS, heads, size, generator=torch.Generator().manual_seed(layer)) for layer in range(LAYERS)]


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    file = tmp_path / "lmcache.yaml"
    file.write_text(f"chunk_size: {CHUNK}\nmax_local_cpu_size: 0.02\nuse_layerwise: true\n")
    return file


@pytest.fixture
def connect(settings: Path) -> Iterator[Callable[..., LMCacheConnector]]:
    def connected(k: list[torch.Tensor], v: list[torch.Tensor], arch: str = "MHA") -> LMCacheConnector:
        return LMCacheConnector(config_of(arch), 1, 0, k, v, str(settings))

    yield connected
    LMCacheEngineBuilder.destroy(ENGINE_NAME)


def slots_of_none(count: int) -> torch.Tensor:
    return torch.full((count,), -1)


def store(cache: LMCacheConnector) -> None:
    cache.store_kv(StoreMetadata(None, TOKENS, THERE, 0))


def held(cache: LMCacheConnector) -> Any:
    return cache.lmcache_engine.status()["l1"]["held"]


def assert_loaded(pool: list[torch.Tensor], first: int = 0, end: int = WHOLE) -> None:
    """These tokens are at their new places, and nothing else has changed."""
    for layer, (now, before) in enumerate(zip(pool, pools(*pool[0].shape[1:]), strict=True)):
        assert torch.equal(now[ELSEWHERE[first:end]], before[THERE[first:end]]), layer
        others = torch.ones(SLOTS, dtype=torch.bool)
        others[ELSEWHERE[first:end]] = False
        assert torch.equal(now[others], before[others]), layer


def test_what_is_stored_is_loaded_to_other_slots(connect: Callable[..., LMCacheConnector]) -> None:
    k, v = pools(), [-each for each in pools()]
    cache = connect(k, v)
    assert cache.load_kv(LoadMetadata(TOKENS, ELSEWHERE, 0)) == 0
    store(cache)
    assert cache.load_kv(LoadMetadata(TOKENS, ELSEWHERE, 0)) == WHOLE
    assert_loaded(k)
    assert_loaded([-each for each in v])
    assert cache.chunk_size() == CHUNK
    assert not held(cache)
    metadata = cache.lmcache_engine.metadata
    assert metadata.kv_shape == (LAYERS, 2, CHUNK, HEADS, SIZE)
    assert (metadata.model_name, metadata.world_size, metadata.worker_id) == ("tiny", 1, 0)
    cache.reset()
    assert cache.load_kv(LoadMetadata(TOKENS, ELSEWHERE, 0)) == 0
    cache.close()
    assert LMCacheEngineBuilder.get(ENGINE_NAME) is None


@pytest.mark.parametrize("whole", [True, False], ids=["a slot for each token", "for each behind the offset"])
@pytest.mark.parametrize("pad", [0, 5])
@pytest.mark.parametrize("layerwise", [True, False])
def test_tokens_in_front_are_left_out(
    connect: Callable[..., LMCacheConnector], whole: bool, pad: int, layerwise: bool
) -> None:
    k = pools()
    cache = connect(k, pools())
    store(cache)
    slots = ELSEWHERE.clone()
    slots[: 2 * CHUNK + pad] = -1
    load = LoadMetadata(TOKENS, slots if whole else slots[2 * CHUNK :], 2 * CHUNK, pad)
    assert (cache.start_load_kv if layerwise else cache.load_kv)(load) == 2 * CHUNK
    for layer in range(LAYERS if layerwise else 0):
        cache.load_kv_layerwise(layer)
    assert_loaded(k, 2 * CHUNK + pad)
    assert not held(cache)


def test_mla_has_one_vector_a_token(connect: Callable[..., LMCacheConnector]) -> None:
    k = pools(1, 24)
    cache = connect(k, [each[..., :16] for each in k], "MLA")
    store(cache)
    assert cache.load_kv(LoadMetadata(TOKENS, ELSEWHERE, 0)) == WHOLE
    assert_loaded(k)
    metadata = cache.lmcache_engine.metadata
    assert (metadata.kv_shape, metadata.use_mla) == ((LAYERS, 1, CHUNK, 1, 24), True)


def test_layers_come_one_by_one_and_nothing_stays_held(connect: Callable[..., LMCacheConnector]) -> None:
    k = pools()
    cache = connect(k, pools())
    assert cache.start_load_kv(LoadMetadata(TOKENS, ELSEWHERE, 0)) == 0
    store(cache)
    assert cache.start_load_kv(LoadMetadata(TOKENS, ELSEWHERE, WHOLE)) == 0, "nothing new"
    assert not held(cache)
    assert cache.start_load_kv(LoadMetadata(TOKENS, ELSEWHERE, 0)) == WHOLE
    assert cache.start_load_kv(LoadMetadata(TOKENS[: 2 * CHUNK], ELSEWHERE[: 2 * CHUNK], CHUNK)) == CHUNK
    assert held(cache)
    cache.load_kv_layerwise(1)  # not its turn
    for layer in range(LAYERS):
        for other in range(LAYERS):
            is_there = torch.equal(k[other][ELSEWHERE[:WHOLE]], pools()[other][THERE[:WHOLE]])
            assert is_there == (other <= layer), (layer, other)
        cache.load_kv_layerwise(layer)
    assert_loaded(k)
    assert not held(cache)


def test_a_load_that_is_not_completed_ends_with_a_reset(connect: Callable[..., LMCacheConnector]) -> None:
    cache = connect(pools(), pools())
    store(cache)
    assert cache.start_load_kv(LoadMetadata(TOKENS, ELSEWHERE, 0)) == WHOLE
    cache.reset()
    assert not held(cache)
    assert cache.lmcache_engine.status()["l1"]["cached"] == 0
    cache.load_kv_layerwise(0)


def test_a_load_that_has_lost_what_was_found_is_an_error(
    connect: Callable[..., LMCacheConnector], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its slots would have whatever was there before."""
    cache = connect(pools(), pools())
    monkeypatch.setattr(LMCacheEngine, "lookup", lambda *_, **__: WHOLE)
    assert cache.start_load_kv(LoadMetadata(TOKENS, ELSEWHERE, 0)) == WHOLE
    cache.load_kv_layerwise(0)
    with pytest.raises(LMCacheError, match="64 tokens were found, and 0 loaded"):
        cache.load_kv_layerwise(1)
    cache.load_kv_layerwise(2)


def test_ranks_have_chunks_of_their_own(settings: Path, tmp_path: Path) -> None:
    settings.write_text(settings.read_text() + f"local_disk: {tmp_path / 'disk'}\nmax_local_disk_size: 0.1\n")
    k = [each[:, :1].contiguous() for each in pools()]
    found = []
    for rank in (0, 1, 0):
        cache = LMCacheConnector(config_of(), 2, rank, k, k, str(settings), tp_group=None)
        found.append(cache.load_kv(LoadMetadata(TOKENS, ELSEWHERE, 0)))
        if not rank:
            store(cache)
        cache.close()
    assert found == [0, 0, WHOLE]


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda cache: cache.load_kv(LoadMetadata(TOKENS, ELSEWHERE[:-1], 0)), "68 slots for 69 tokens"),
        (lambda cache: cache.start_load_kv(LoadMetadata(TOKENS, ELSEWHERE[:7], 0)), "7 slots for 69 tokens"),
        (lambda cache: cache.load_kv(LoadMetadata(TOKENS, ELSEWHERE, 5)), "multiple of chunk_size"),
        (lambda cache: cache.load_kv(LoadMetadata(TOKENS, ELSEWHERE, 70)), "offset is 70; it is 0 to the number"),
        (lambda cache: cache.load_kv(LoadMetadata(TOKENS, ELSEWHERE + 300, 0)), "the KV cache has 515"),
        (
            lambda cache: cache.load_kv(
                LoadMetadata(TOKENS, torch.cat([ELSEWHERE[:9], slots_of_none(1), ELSEWHERE[10:]]), 0)
            ),
            "blocks -1",
        ),
        (lambda cache: cache.load_kv(LoadMetadata(TOKENS, ELSEWHERE.float(), 0)), "integers in one dimension"),
        (lambda cache: cache.store_kv(StoreMetadata(None, TOKENS, THERE[:-1], 0)), "68 slots for 69 tokens"),
        (lambda cache: cache.start_load_kv(LoadMetadata(TOKENS, ELSEWHERE, 5)), "multiple of chunk_size"),
        (lambda cache: cache.store_kv(StoreMetadata(None, TOKENS[:CHUNK][::-1], slots_of_none(CHUNK), 0)), "blocks -1"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    connect: Callable[..., LMCacheConnector], ask: Callable[[LMCacheConnector], Any], said: str
) -> None:
    k = pools()
    cache = connect(k, pools())
    store(cache)
    with pytest.raises(ValueError, match=said):
        ask(cache)
    assert all(map(torch.equal, k, pools()))
    assert not held(cache)


def test_pools_and_configurations_that_are_not_understood_are_refused(
    connect: Callable[..., LMCacheConnector], settings: Path
) -> None:
    for k, v, said in (
        ([], [], "k_pool is empty"),
        (pools(), pools()[1:], "as many K as V"),
        (pools(1), pools(1), "the metadata says"),
        (pools()[1:], pools()[1:], "the metadata says"),
    ):
        with pytest.raises(ValueError, match=said):
            connect(k, v)
        LMCacheEngineBuilder.destroy(ENGINE_NAME)
    settings.write_text("mp_host: 127.0.0.1\n")
    with pytest.raises(ConfigError, match="mp_host"):
        connect(pools(), pools())
