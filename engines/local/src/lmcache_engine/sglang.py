"""The interface that SGLang had for a cache in its process, for code that was written against it.

SGLang itself does not call it any more.  Each rank is for itself: there is no process group, and nothing is broadcast."""

from __future__ import annotations

import os
import uuid
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lmcache_client import LMCacheError
from lmcache_engine.builder import LMCacheEngineBuilder
from lmcache_engine.config import FILE_VARIABLE, LMCacheEngineConfig
from lmcache_engine.engine import LMCacheEngine
from lmcache_engine.metadata import LMCacheMetadata
from lmcache_engine.pages import CreateGPUConnector, EngineType, slot_numbers

ENGINE_NAME: Final = "sglang-instance"


@dataclass
class StoreMetadata:
    """A slot for each token.  `last_node` and `offset` have no effect: what is there is not stored again."""

    last_node: object
    token_ids: list[int]
    kv_indices: Any
    offset: int
    request_id: str = ""


@dataclass
class LoadMetadata:
    """`offset`: tokens in front that are not loaded, whole chunks.  `slot_mapping`: a slot for each token, or for each behind
    `offset`; -1 for the first ones goes nowhere.  `prefix_pad` has no effect."""

    token_ids: list[int]
    slot_mapping: Any
    offset: int
    prefix_pad: int = 0
    request_id: str = ""


@dataclass
class _Loading:
    steps: Generator[Any, None, None]
    lookup_id: str
    tokens: int
    layer: int = 0
    """That comes next."""


def init_lmcache_engine(
    model_config: Any,
    tp_size: int,
    local_rank: int,
    global_rank: int,
    kv_dtype: Any,
    config_file: str = "",
    kv_head_dim: int | None = None,
) -> LMCacheEngine:
    """The engine of this process, by a YAML file (without: that of LMCACHE_CONFIG_FILE) and LMCACHE_* variables over it.

    `kv_head_dim`: of a row, which an MLA model needs.  Raises ValueError or ConfigError for what cannot be meant."""
    config = LMCacheEngineConfig.from_env({**os.environ, **({FILE_VARIABLE: config_file} if config_file else {})})
    use_mla = _is_mla(model_config)
    if not use_mla:
        kv, heads, size = 2, int(model_config.get_num_kv_heads(tp_size)), int(model_config.head_dim)
    elif kv_head_dim:
        kv, heads, size = 1, 1, kv_head_dim
    else:
        raise ValueError("an MLA model needs kv_head_dim, the elements of a row of its KV cache")
    shape = (model_config.num_hidden_layers, kv, config.chunk_size, heads, size)
    metadata = LMCacheMetadata(
        model_config.model_path, tp_size, tp_size, global_rank, local_rank, kv_dtype, shape, use_mla
    )
    # Slots are blocks of one token: SGLang's pages need not be known.
    hints = {"tokens_per_block": 1, **({} if use_mla else {"kv_list_layout": "k_v"})}
    pages = CreateGPUConnector(config, metadata, EngineType.SGLANG, hints)
    return LMCacheEngineBuilder.get_or_create(ENGINE_NAME, config, metadata, pages)


class LMCacheConnector:
    """Between the pools of a rank and its cache.  One thread.

    Whole or layer by layer (`use_layerwise`): there is one class for both.  With several ranks the caller takes the least of
    what they loaded."""

    def __init__(
        self,
        sgl_config: Any,
        tp_size: int,
        rank: int,
        k_pool: Sequence[Any],
        v_pool: Sequence[Any],
        config_file: str = "",
        tp_group: Any = None,
    ) -> None:
        """`k_pool`, `v_pool`: `[slots, heads, dimension]` of each layer, in the host's memory; MLA has all of it in the first.
        `tp_group` is not used.  Raises ValueError for other pools, ConfigError for what is refused in the configuration."""
        if not k_pool:
            raise ValueError("k_pool is empty: it has a tensor for each layer")
        use_mla = _is_mla(sgl_config)
        row = int(k_pool[0].shape[-1]) if use_mla else None
        self.lmcache_engine = init_lmcache_engine(
            sgl_config, tp_size, rank, rank, k_pool[0].dtype, config_file, kv_head_dim=row
        )
        self.kvcaches = [*k_pool] if use_mla else [*k_pool, *v_pool]
        self._layers = len(k_pool)
        self._loads: list[_Loading] = []
        self.lmcache_engine.post_init(kvcaches=self.kvcaches)

    def load_kv(self, load_metadata: LoadMetadata) -> int:
        """How many tokens behind `offset` are in their slots now."""
        slots, mask = _placed(load_metadata)
        found = self.lmcache_engine.retrieve(load_metadata.token_ids, mask=mask, slot_mapping=slots)
        return int(found.sum())

    def store_kv(self, store_metadata: StoreMetadata) -> None:
        """A cache that has no room stores a part, and logs so."""
        tokens, slots = store_metadata.token_ids, slot_numbers(store_metadata.kv_indices)
        if len(slots) != len(tokens):
            raise ValueError(f"kv_indices has {len(slots)} slots for {len(tokens)} tokens; it has one for each")
        self.lmcache_engine.store(tokens, slot_mapping=slots)

    def start_load_kv(self, load_metadata: LoadMetadata) -> int:
        """As `load_kv`, a layer at a time: the first one is loaded now, and each other one by `load_kv_layerwise`."""
        slots, mask = _placed(load_metadata)
        tokens, name = load_metadata.token_ids, f"load-{uuid.uuid4().hex}"
        found = self.lmcache_engine.lookup(tokens, lookup_id=name, pin=True)
        try:
            steps = self.lmcache_engine.retrieve_layer(tokens[:found], mask=mask[:found], slot_mapping=slots[:found])
        except BaseException:
            self.lmcache_engine.lookup_unpin(name)
            raise
        load = _Loading(steps, name, max(found - load_metadata.offset, 0))
        self._loads.append(load)
        if load.tokens:
            self._load_layer(load)
        else:
            self._end(load)
        return load.tokens

    def load_kv_layerwise(self, layer_id: int) -> None:
        """Load the layer after `layer_id`.  Raises LMCacheError when chunks are gone that `start_load_kv` had found: the
        slots of that load must not be used."""
        for load in [each for each in self._loads if each.layer == layer_id + 1]:
            self._load_layer(load)

    def chunk_size(self) -> int:
        return int(self.lmcache_engine.config.chunk_size)

    def reset(self) -> None:
        """Drop what is in memory, and loads that were not completed."""
        for load in [*self._loads]:
            self._end(load)
        self.lmcache_engine.clear()

    def close(self) -> None:
        for load in [*self._loads]:
            self._end(load)
        LMCacheEngineBuilder.destroy(ENGINE_NAME)

    def _load_layer(self, load: _Loading) -> None:
        try:
            next(load.steps)
            load.layer += 1
            if load.layer < self._layers:
                return
            next(load.steps)
            if (loaded := int(next(load.steps).sum())) != load.tokens:
                raise LMCacheError(f"{load.tokens} tokens were found, and {loaded} loaded")
        except BaseException:
            self._end(load)
            raise
        self._end(load)

    def _end(self, load: _Loading) -> None:
        self._loads.remove(load)
        load.steps.close()
        self.lmcache_engine.lookup_unpin(load.lookup_id)


LMCacheLayerwiseConnector = LMCacheConnector


def _is_mla(model_config: Any) -> bool:
    kind = getattr(model_config, "attention_arch", None)
    return str(getattr(kind, "name", kind)) == "MLA"


def _placed(load: LoadMetadata) -> tuple[NDArray[np.int64], list[bool]]:
    """A slot for each token, and which of the tokens are wanted."""
    tokens, offset, slots = len(load.token_ids), load.offset, slot_numbers(load.slot_mapping)
    if not 0 <= offset <= tokens:
        raise ValueError(f"offset is {offset}; it is 0 to the number of tokens, which is {tokens}")
    if len(slots) == tokens - offset:
        slots = np.append(np.full(offset, -1, np.int64), slots)
    if len(slots) != tokens:
        raise ValueError(f"slot_mapping has {len(slots)} slots for {tokens} tokens, of which {offset} are not loaded")
    return slots, [False] * offset + [True] * (tokens - offset)
