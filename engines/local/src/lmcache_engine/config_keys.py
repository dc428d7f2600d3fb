"""The one table of configuration keys: type, default, and what becomes of each.  Code and pages are made of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple


class Fate(StrEnum):
    USED = "used"
    MAPPED = "mapped"
    """To a setting of the server's."""
    NO_EFFECT = "no effect"
    REFUSED = "refused"
    """Where it is given and is not the default."""


class ConfigKey(NamedTuple):
    kind: str
    """`bool`, `int`, `float`, `str`, `ints`, `floats`, `strs` or `json`."""
    default: Any
    fate: Fate
    text: str
    """What it means here, why it has no effect, or what to do instead."""


def _each(names: str, kind: str, default: Any, fate: Fate, text: str) -> dict[str, ConfigKey]:
    return dict.fromkeys(names.split(), ConfigKey(kind, default, fate, text))


_COORDINATOR: Final = "needs lmcache-p2p, lmcache-fleet-member and, in extra_config.server, a `coordinator_url`"
_ONE_PORT: Final = "one port is enough"
_CHANNEL: Final = "the fastest that both peers have; another one by `p2p_transfer_engine` in extra_config.server"
_IN_L1: Final = "peers read out of L1, and into it"
_NO_NEWS: Final = "a receiver asks the sender, and a proxy needs no news"
_BLEND: Final = "`lmcache.{}` of vLLM's connector"
_CONTROLLER: Final = (
    "the fleet's coordinator replaces the controller: leave it out, and give extra_config.server a `coordinator_url`"
)
_PD_TUNING: Final = "a hand-off has nothing to tune in this way"
_SERVER: Final = (
    "for a client of a server: `lmcache migrate-config` gives SGLang's arguments; lmcache-vllm has `lmcache.url`"
)
_API: Final = "there is no HTTP API in an engine's process: `LMCacheEngine.status` has the figures"
_STATISTICS: Final = "counted always: `LMCacheEngine.status`"
_LAZY: Final = "memory grows ahead of need, by as much as is needed"

KEYS: Final[Mapping[str, ConfigKey]] = {
    "chunk_size": ConfigKey("int", 256, Fate.MAPPED, "tokens of a chunk: `chunk_size`"),
    "local_cpu": ConfigKey(
        "bool", True, Fate.MAPPED, "false: memory is a buffer for the other tiers (policy `skip_l1`)"
    ),
    "max_local_cpu_size": ConfigKey("float", 5.0, Fate.MAPPED, "GiB of memory: `l1_size_gb`"),
    "local_cpu_use_hugepages": ConfigKey("bool", False, Fate.MAPPED, "`l1_use_hugepages`"),
    "local_disk": ConfigKey(
        "str", None, Fate.MAPPED, "folder of the adapter `fs_native` where it is installed, else `fs`"
    ),
    "max_local_disk_size": ConfigKey("float", 0.0, Fate.MAPPED, "GiB of that folder; 0: it is not used"),
    "remote_url": ConfigKey(
        "str",
        None,
        Fate.MAPPED,
        "an adapter by its scheme: redis, rediss, unix, valkey, s3, mooncakestore, lm, infinistore, file, fs",
    ),
    "remote_serde": ConfigKey(
        "str", "naive", Fate.USED, "naive alone; for fewer bytes use a serde of lmcache-serde: int8, int4"
    ),
    "cache_policy": ConfigKey("str", "LRU", Fate.MAPPED, "`eviction_policy`: LRU, LFU, FIFO or MRU"),
    "save_unfull_chunk": ConfigKey(
        "bool", False, Fate.USED, "a prompt's last chunk is stored, too, as far as it has whole blocks of the KV cache"
    ),
    "pin_timeout_sec": ConfigKey("float", 300, Fate.MAPPED, "`l1_read_ttl_seconds`: how long a pin lasts"),
    "blocking_timeout_secs": ConfigKey(
        "float", 10, Fate.MAPPED, "`lookup_timeout_seconds`: longest wait of a retrieve"
    ),
    "min_retrieve_tokens": ConfigKey("int", 0, Fate.USED, "fewer tokens found count as none"),
    "pre_caching_hash_algorithm": ConfigKey(
        "str", "builtin", Fate.MAPPED, "builtin: blake3, the same in each process; sha256_cbor: the same as before"
    ),
    "enable_lazy_memory_allocator": ConfigKey("bool", False, Fate.MAPPED, "memory is allocated when it is needed"),
    "lazy_memory_initial_ratio": ConfigKey(
        "float", 0.2, Fate.MAPPED, "share that is allocated at the start: `l1_init_size_gb`"
    ),
    "numa_mode": ConfigKey(
        "str", None, Fate.MAPPED, "`l1_numa`: auto is the memory node of the thread that opens the cache"
    ),
    "lmcache_instance_id": ConfigKey("str", None, Fate.MAPPED, "`instance_id`"),
    "extra_config": ConfigKey(
        "json",
        None,
        Fate.USED,
        "`server`: any setting of `lmcache server`; what belongs to an s3 or mooncakestore `remote_url`",
    ),
    "save_decode_cache": ConfigKey("bool", False, Fate.NO_EFFECT, "the engine says what it stores"),
    "reserve_local_cpu_size": ConfigKey("float", 0.0, Fate.NO_EFFECT, "L1 has the size that is given"),
    "pin_check_interval_sec": ConfigKey(
        "float",
        30,
        Fate.USED,
        "how often pins that ended by themselves are counted and logged; they end within a second",
    ),
    "use_layerwise": ConfigKey(
        "bool", False, Fate.USED, "by the engine, which calls `store_layer` and `retrieve_layer`"
    ),
    "lookup_timeout_ms": ConfigKey("int", 3000, Fate.NO_EFFECT, "a lookup is a call, nothing waits for a reply"),
    "py_enable_gc": ConfigKey("bool", True, Fate.NO_EFFECT, "the garbage collector is the engine's"),
    "priority_limit": ConfigKey("int", None, Fate.NO_EFFECT, "the engine says what it stores"),
    "hit_miss_ratio": ConfigKey("float", None, Fate.NO_EFFECT, "it was for tests"),
    "use_gpu_connector_v3": ConfigKey("bool", False, Fate.NO_EFFECT, "there is one connector for all layouts"),
    "app_id": ConfigKey("str", None, Fate.NO_EFFECT, "nothing is fetched from elsewhere"),
    "remote_config_url": ConfigKey("str", None, Fate.REFUSED, "write the settings into LMCACHE_CONFIG_FILE"),
    "retrieve_locations": ConfigKey(
        "strs", None, Fate.USED, "all configured tiers, in their order, or LocalCPUBackend alone"
    ),
    "store_location": ConfigKey(
        "str", None, Fate.USED, "the only tier below memory (policy `skip_l1`): LocalDiskBackend or RemoteBackend"
    ),
    "enable_blending": ConfigKey(
        "bool", False, Fate.MAPPED, "`lmcache.blend` of vLLM's connector; needs lmcache-blend; with `save_unfull_chunk`"
    ),
    "blend_min_tokens": ConfigKey("int", 256, Fate.MAPPED, _BLEND.format("blend_min_tokens")),
    "blend_special_str": ConfigKey("str", " # # ", Fate.MAPPED, _BLEND.format("blend_special_str")),
    "blend_recompute_ratios": ConfigKey("floats", None, Fate.MAPPED, _BLEND.format("blend_recompute_ratios")),
    "blend_thresholds": ConfigKey("floats", None, Fate.MAPPED, _BLEND.format("blend_thresholds")),
    "blend_check_layers": ConfigKey("ints", None, Fate.MAPPED, _BLEND.format("blend_check_layers")),
    "enable_p2p": ConfigKey("bool", False, Fate.MAPPED, f"what peers have is found; {_COORDINATOR}"),
    "p2p_host": ConfigKey("str", None, Fate.MAPPED, "with the port of this rank: `p2p_advertise_url`"),
    "p2p_init_ports": ConfigKey("ints", None, Fate.MAPPED, "one for each rank; vLLM's ranks share the first one"),
    "p2p_lookup_ports": ConfigKey("ints", None, Fate.NO_EFFECT, _ONE_PORT),
    "mp_host": ConfigKey("str", None, Fate.REFUSED, _SERVER),
    "mp_port": ConfigKey("int", 5555, Fate.NO_EFFECT, _SERVER),
    "enable_controller": ConfigKey("bool", False, Fate.REFUSED, _CONTROLLER),
    **_each("controller_pull_url controller_reply_url", "str", None, Fate.NO_EFFECT, _CONTROLLER),
    **_each("lmcache_worker_ports lmcache_worker_ids", "ints", None, Fate.NO_EFFECT, _CONTROLLER),
    "lmcache_worker_heartbeat_delay_time": ConfigKey("int", 10, Fate.NO_EFFECT, _CONTROLLER),
    "lmcache_worker_heartbeat_time": ConfigKey("int", None, Fate.NO_EFFECT, _CONTROLLER),
    "enable_pd": ConfigKey(
        "bool", False, Fate.MAPPED, f"a receiver finds what senders store; with `save_unfull_chunk`; {_COORDINATOR}"
    ),
    "pd_role": ConfigKey(
        "str",
        None,
        Fate.MAPPED,
        "sender (or producer), receiver, both; a receiver keeps nothing that every rank has read",
    ),
    "pd_peer_host": ConfigKey("str", None, Fate.MAPPED, "as `p2p_host`, of a sender, too"),
    "pd_peer_init_port": ConfigKey("ints", None, Fate.MAPPED, "as `p2p_init_ports`"),
    "pd_buffer_size": ConfigKey("int", None, Fate.MAPPED, "bytes; `l1_size_gb` where that is less"),
    **_each("pd_peer_alloc_port pd_peer_query_port", "ints", None, Fate.NO_EFFECT, _ONE_PORT),
    "pd_buffer_device": ConfigKey("str", None, Fate.NO_EFFECT, _IN_L1),
    "pd_proxy_host": ConfigKey("str", None, Fate.NO_EFFECT, _NO_NEWS),
    "pd_proxy_port": ConfigKey("int", None, Fate.NO_EFFECT, _NO_NEWS),
    "pd_backend_mode": ConfigKey("str", "async", Fate.NO_EFFECT, _PD_TUNING),
    "pd_allocation_timeout_sec": ConfigKey("float", math.inf, Fate.NO_EFFECT, _PD_TUNING),
    "pd_shutdown_timeout_sec": ConfigKey("float", 5.0, Fate.NO_EFFECT, _PD_TUNING),
    "pd_condition_poll_interval_sec": ConfigKey("float", 0.005, Fate.NO_EFFECT, _PD_TUNING),
    "pd_max_prefill_len": ConfigKey("int", 0, Fate.NO_EFFECT, _PD_TUNING),
    **_each("pd_skip_proxy_notification pd_bidirectional", "bool", False, Fate.NO_EFFECT, _PD_TUNING),
    "transfer_channel": ConfigKey("str", None, Fate.NO_EFFECT, _CHANNEL),
    "nixl_backends": ConfigKey("strs", None, Fate.NO_EFFECT, _CHANNEL),
    "nixl_buffer_device": ConfigKey("str", None, Fate.NO_EFFECT, _IN_L1),
    **_each("gds_path maru_path", "str", None, Fate.REFUSED, "name an adapter in extra_config.server: `l2_adapter`"),
    "gds_path_sharding": ConfigKey("str", "by_gpu", Fate.NO_EFFECT, "one folder, one engine"),
    "local_disk_path_sharding": ConfigKey(
        "str", "by_gpu", Fate.NO_EFFECT, "each worker has a folder: `worker-N` in the first one's"
    ),
    "gds_buffer_size": ConfigKey("int", None, Fate.NO_EFFECT, "L1 is the buffer"),
    "maru_pool_size": ConfigKey("float", 4.0, Fate.NO_EFFECT, "L1 is the buffer"),
    "use_gds": ConfigKey("bool", True, Fate.NO_EFFECT, "the adapter decides"),
    "gds_backend": ConfigKey("str", "cufile", Fate.NO_EFFECT, "the adapter decides"),
    "audit_actual_remote_url": ConfigKey("str", None, Fate.REFUSED, "give it as remote_url"),
    "external_lookup_client": ConfigKey("str", None, Fate.REFUSED, "leave it out: a lookup asks the tiers"),
    "enable_async_loading": ConfigKey("bool", False, Fate.NO_EFFECT, "loads never wait for each other"),
    "lookup_server_worker_ids": ConfigKey("ints", None, Fate.NO_EFFECT, "a lookup is a call"),
    "enable_scheduler_bypass_lookup": ConfigKey("bool", False, Fate.NO_EFFECT, "a lookup is a call"),
    "internal_api_server_enabled": ConfigKey("bool", False, Fate.NO_EFFECT, _API),
    "internal_api_server_host": ConfigKey("str", "127.0.0.1", Fate.NO_EFFECT, _API),
    "internal_api_server_port_start": ConfigKey("int", 6999, Fate.NO_EFFECT, _API),
    "internal_api_server_include_index_list": ConfigKey("ints", None, Fate.NO_EFFECT, _API),
    "internal_api_server_socket_path_prefix": ConfigKey("str", None, Fate.NO_EFFECT, _API),
    "script_allowed_imports": ConfigKey("strs", None, Fate.NO_EFFECT, "no scripts are run"),
    "run_script_api_enabled": ConfigKey("bool", False, Fate.REFUSED, "no scripts are run"),
    "runtime_plugin_locations": ConfigKey(
        "strs", None, Fate.REFUSED, "programs beside the cache are lmcache-sidecar's, of a server"
    ),
    **_each(
        "storage_plugins remote_storage_plugins",
        "strs",
        None,
        Fate.REFUSED,
        "write an L2 adapter (docs/plugins), and name it in extra_config.server: `l2_adapter`",
    ),
    **_each("lazy_memory_expand_trigger_ratio", "float", 0.5, Fate.NO_EFFECT, _LAZY),
    **_each("lazy_memory_step_ratio", "float", 0.1, Fate.NO_EFFECT, _LAZY),
    **_each("lazy_memory_safe_size", "float", 0.0, Fate.NO_EFFECT, _LAZY),
    **_each(
        "enable_chunk_statistics chunk_statistics_auto_start_statistics", "bool", False, Fate.NO_EFFECT, _STATISTICS
    ),
    "chunk_statistics_auto_exit_timeout_hours": ConfigKey("float", 0.0, Fate.NO_EFFECT, _STATISTICS),
    "chunk_statistics_auto_exit_target_unique_chunks": ConfigKey("int", 0, Fate.NO_EFFECT, _STATISTICS),
    "chunk_statistics_strategy": ConfigKey("str", "memory_bloom_filter", Fate.NO_EFFECT, _STATISTICS),
    "enable_kv_events": ConfigKey("bool", False, Fate.REFUSED, "run `lmcache server` with lmcache-kv-events"),
    "enable_hidden_state_cache": ConfigKey("bool", False, Fate.REFUSED, "hidden states are not cached"),
    "max_hidden_state_cpu_size": ConfigKey("float", 2.0, Fate.NO_EFFECT, "hidden states are not cached"),
    "hidden_state_layers": ConfigKey("ints", None, Fate.NO_EFFECT, "hidden states are not cached"),
    "hidden_states_retrieve_mode": ConfigKey("str", "prefix_strict", Fate.NO_EFFECT, "hidden states are not cached"),
}
"""Each key by its name."""

OLD_NAMES: Final[Mapping[str, str]] = {
    "enable_xpyd": "enable_pd",
    "nixl_role": "pd_role",
    "nixl_peer_host": "pd_peer_host",
    "nixl_peer_init_port": "pd_peer_init_port",
    "nixl_peer_alloc_port": "pd_peer_alloc_port",
    "nixl_proxy_host": "pd_proxy_host",
    "nixl_proxy_port": "pd_proxy_port",
    "nixl_buffer_size": "pd_buffer_size",
    "controller_url": "controller_pull_url",
    "lmcache_worker_port": "lmcache_worker_ports",
    "plugin_locations": "runtime_plugin_locations",
    "external_backends": "storage_plugins",
}
"""Names of earlier versions, and what they are called now."""
SGLANG_REFUSED: Final[Mapping[str, str]] = {
    "enable_blending": "vLLM's connector blends, and SGLang's linker does not",
    "enable_pd": "vLLM's connector hands prompts over; SGLang does so itself, by --disaggregation-mode",
}
"""By SGLang's linker, with a cache in SGLang's process: why."""
SGLANG_NO_EFFECT: Final[Mapping[str, str]] = {
    "chunk_size": "an object is a page of --page-size tokens",
    "save_unfull_chunk": "whole pages are stored",
    "pre_caching_hash_algorithm": "keys are SGLang's own hashes",
    "min_retrieve_tokens": "min_load_pages of linker_extra_config says it",
    "blocking_timeout_secs": "a step of SGLang waits, as long as prefetch_timeout_seconds of linker_extra_config says",
    "retrieve_locations": "all tiers are asked",
}
"""Keys that have one in other engines."""
