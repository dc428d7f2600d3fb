"""From the keys of an engine's configuration to settings of the server's core."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from lmcache_client.errors import ConfigError

POLICIES: Final = ("LRU", "LFU", "FIFO", "MRU")
_SCHEMES: Final = "redis, rediss, unix, valkey, s3, file and fs"


class Adapter(NamedTuple):
    """An adapter's settings, and the plugin that has it."""

    plugin: str
    settings: dict[str, Any]


def server_settings(values: Mapping[str, Any], hash_algorithm: str) -> dict[str, Any]:
    """`values`: checked, by key.  Raises ConfigError for a policy, a folder or a scheme that cannot be used."""
    adapters = _adapters(values)
    policy = str(values["cache_policy"]).upper()
    if policy not in POLICIES:
        raise ConfigError(f"'cache_policy' is '{values['cache_policy']}': expected one of {', '.join(POLICIES)}")
    settings: dict[str, Any] = {
        "chunk_size": values["chunk_size"],
        "hash_algorithm": hash_algorithm,
        "l1_size_gb": values["max_local_cpu_size"],
        "l1_use_lazy": values["enable_lazy_memory_allocator"],
        "l1_use_hugepages": values["local_cpu_use_hugepages"],
        "l1_read_ttl_seconds": values["pin_timeout_sec"],
        "lookup_timeout_seconds": values["blocking_timeout_secs"],
        "eviction_policy": policy,
        "l2_adapter": [each.settings for each in adapters],
    }
    plugins = [each.plugin for each in adapters] + (["policies"] if policy != "LRU" else [])
    if values["enable_lazy_memory_allocator"]:
        settings["l1_init_size_gb"] = values["lazy_memory_initial_ratio"] * values["max_local_cpu_size"]
    if values["numa_mode"]:
        settings["l1_numa"] = "local" if values["numa_mode"] == "auto" else values["numa_mode"]
    if values["lmcache_instance_id"]:
        settings["instance_id"] = values["lmcache_instance_id"]
    if adapters:
        settings["l2_prefetch_policy"] = "retain"
        plugins.append("policies")
        if not values["local_cpu"]:
            settings["l2_store_policy"] = "skip_l1"
    own = (values["extra_config"] or {}).get("server") or {}
    if not isinstance(own, Mapping):
        raise ConfigError("'extra_config.server' has settings of `lmcache server` by name, such as l1_numa: interleave")
    plugins += own.get("plugins", ())
    return {**settings, **own, "plugins": list(dict.fromkeys(plugins))}


def _adapters(values: Mapping[str, Any]) -> list[Adapter]:
    found = []
    if values["local_disk"] and values["max_local_disk_size"]:
        found.append(_disk(values))
    if values["remote_url"]:
        found.append(remote(values["remote_url"]))
    return found


def _disk(values: Mapping[str, Any]) -> Adapter:
    folder = Path(str(values["local_disk"]).removeprefix("file://"))
    if folder.is_dir() and any(folder.glob("*.pt")):
        raise ConfigError(f"'local_disk' {folder} has files of the public package (*.pt); name another folder")
    direct = bool((values["extra_config"] or {}).get("use_odirect", False))
    adapter = _files(folder, {"max_capacity_gb": values["max_local_disk_size"], "use_odirect": direct})
    adapter.settings["eviction"] = {"eviction_policy": str(values["cache_policy"]).upper()}
    return adapter


def _files(folder: Path, more: Mapping[str, Any]) -> Adapter:
    kind = "fs_native" if find_spec("lmcache_l2_fs_native") and find_spec("lmcache_native") else "fs"
    return Adapter(kind, {"type": kind, "base_path": str(folder), **more})


def remote(url: str) -> Adapter:
    """The adapter for a `remote_url`.  Raises ConfigError for a scheme without one."""
    scheme, colon, _ = url.partition("://")
    read = _REMOTE.get(scheme) if colon else None
    if read is None:
        raise ConfigError(f"'remote_url' is '{scheme}{colon}...': {_OTHERS.get(scheme, f'understood are {_SCHEMES}')}")
    return read(url)


def _redis(url: str) -> Adapter:
    return Adapter(
        "redis", {"type": "redis", "url": "redis" + url[len("valkey") :] if url.startswith("valkey:") else url}
    )


def _shared_files(url: str) -> Adapter:
    return _files(Path(urlsplit(url).path), {})


_REMOTE: Final[Mapping[str, Callable[[str], Adapter]]] = {
    "redis": _redis,
    "rediss": _redis,
    "unix": _redis,
    "valkey": _redis,
    "file": _shared_files,
    "fs": _shared_files,
}
_OTHERS: Final = {
    "lm": "the server of this protocol is not supported; run `lmcache server` there and use lmcache-p2p, or a Redis",
    "infinistore": "it is not supported; use redis, s3 or mooncake_store",
    "s3": "name the bucket in extra_config.server: l2_adapter, type s3",
    "mooncake": "name it in extra_config.server: l2_adapter, type mooncake_store",
    "mooncakestore": "name it in extra_config.server: l2_adapter, type mooncake_store",
}
