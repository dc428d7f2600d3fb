"""SGLang's pools of KV: which are understood, and how they are divided."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, MHABufferInfo, MLABufferInfo
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

from lmcache_client import ConfigError
from lmcache_sglang.page_link import PAGE_SIZE_MIN


def check_pools(kv_pool: Any, components: Any, server_args: Any, params: Any) -> None:
    """Raises ConfigError for what is not kept, or not whole."""
    names, kind = ", ".join(sorted(each.name for each in components)), type(kv_pool).__name__
    if not set(components) <= {ComponentType.FULL, ComponentType.SWA}:
        raise ConfigError(f"a model with caches {names}: lmcache-sglang knows FULL and SWA; use --enable-lmcache")
    if len(parts(kv_pool)) != len(components):
        raise ConfigError(
            f"the KV pool is a {kind}, of a model with caches {names}: lmcache-sglang knows windows that SGLang keeps with "
            "prefixes; use --enable-lmcache"
        )
    if params.mtp_draft_device_pools or params.sidecar_draft_device_pools:
        raise ConfigError(
            "the draft model has KV of its own, which lmcache-sglang does not keep: use no draft model, or no linker"
        )
    if getattr(server_args, "dcp_size", 1) > 1:
        raise ConfigError(
            f"--dcp-size {server_args.dcp_size}: ranks divide pages, which lmcache-sglang does not know; use 1, or no linker"
        )
    if params.page_size < PAGE_SIZE_MIN:
        raise ConfigError(
            f"--page-size {params.page_size}: each page is an object of the server; choose {PAGE_SIZE_MIN} or more"
        )


def parts(kv_pool: Any) -> dict[PoolName, Any]:
    """The pools of one model."""
    if type(kv_pool) is SWAKVPool:
        return {PoolName.KV: kv_pool.full_kv_pool, PoolName.SWA: kv_pool.swa_kv_pool}
    return {PoolName.KV: kv_pool}


def planes(pool: Any) -> Sequence[Sequence[torch.Tensor]]:
    """All that decides what a page is.  Raises ConfigError where there is more, or it is in another order."""
    infos: Sequence[Any] = pool.get_device_pool_infos() if type(pool) in (MHATokenToKVPool, MLATokenToKVPool) else ()
    if len(infos) == 1 and (info := infos[0].buffer_info).scales is None:
        if type(info) is MLABufferInfo and len(info.buffers) == info.device_layer_num:
            return [info.buffers]
        if type(info) is MHABufferInfo and info.buffers.layout is KVBufferLayout.NHD and info.transfer_buffers is None:
            return [info.buffers.k, info.buffers.v]
    raise ConfigError(
        f"the KV pool is a {type(pool).__name__} with scales, in another order, or of a type that lmcache-sglang does not know "
        "(MHATokenToKVPool and MLATokenToKVPool, slots outermost); use --enable-lmcache"
    )


def layers(kv_pool: Any, name: PoolName) -> dict[int, int]:
    """A pool's layers, by those for which a forward pass waits."""
    if type(kv_pool) is not SWAKVPool:
        return {number: number for number in range(len(planes(kv_pool)[0]))}
    is_windowed = name is PoolName.SWA
    return {layer: own for layer, (own, is_swa) in kv_pool.layers_mapping.items() if is_swa is is_windowed}


def rank(params: Any) -> tuple[int, int]:
    """Of those that share the heads of a layer, and their number."""
    group = params.attn_tp_cache_group or params.tp_cache_group
    return (torch.distributed.get_rank(group), torch.distributed.get_world_size(group)) if group is not None else (0, 1)


def shard(params: Any, is_alike: bool) -> tuple[int, ...]:
    """Rank and size of each way in which pages are divided among ranks."""
    ranks = (0, 1) if is_alike else rank(params)
    return (*ranks, params.pp_rank, params.pp_size, params.attn_cp_rank, params.attn_cp_size)
