"""From the keys of an engine's configuration to settings of the server's core."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

from lmcache_client.errors import ConfigError
from lmcache_engine.peers import l1_size_gb, peer_settings, role

POLICIES: Final = ("LRU", "LFU", "FIFO", "MRU")
MEMORY, DISK, REMOTE = "LocalCPUBackend", "LocalDiskBackend", "RemoteBackend"
PEERS: Final = {"enable_pd": "PDBackend", "enable_p2p": "P2PBackend"}
"""Names of tiers, by the key of each one that is other caches' memory."""
_SCHEMES: Final = "redis, rediss, unix, valkey, s3, mooncake, mooncakestore, lm, infinistore, file and fs"
_S3: Final = (
    "s3_region",
    "s3_num_io_threads",
    "s3_prefer_http2",
    "s3_enable_s3express",
    "disable_tls",
    "aws_access_key_id",
    "aws_secret_access_key",
)
_MOONCAKE: Final = ("local_hostname", "metadata_server", "protocol", "global_segment_size", "local_buffer_size")
"""Of `extra_config`, with the same meaning here."""


class Adapter(NamedTuple):
    """An adapter's settings, and the plugin that has it."""

    plugin: str
    settings: dict[str, Any]


def server_settings(values: Mapping[str, Any], hash_algorithm: str, worker: int = 0) -> dict[str, Any]:
    """`values`: checked, by key.  `worker`: which of several that have a cache each.  Raises ConfigError for a policy, a folder
    or a scheme that cannot be used, and for what peers lack."""
    adapters = _adapters(values, worker)
    asks_memory_alone("retrieve_locations", values["retrieve_locations"], tiers(values))
    policy = str(values["cache_policy"]).upper()
    if policy not in POLICIES:
        raise ConfigError(f"'cache_policy' is '{values['cache_policy']}': expected one of {', '.join(POLICIES)}")
    settings: dict[str, Any] = {
        "chunk_size": values["chunk_size"],
        "hash_algorithm": hash_algorithm,
        "l1_size_gb": l1_size_gb(values),
        "l1_use_lazy": values["enable_lazy_memory_allocator"],
        "l1_use_hugepages": values["local_cpu_use_hugepages"],
        "l1_read_ttl_seconds": values["pin_timeout_sec"],
        "lookup_timeout_seconds": values["blocking_timeout_secs"],
        "eviction_policy": policy,
        "l2_adapter": [each.settings for each in adapters],
    }
    plugins = [each.plugin for each in adapters] + (["policies"] if policy != "LRU" else [])
    if values["enable_lazy_memory_allocator"]:
        settings["l1_init_size_gb"] = values["lazy_memory_initial_ratio"] * settings["l1_size_gb"]
    if values["numa_mode"]:
        settings["l1_numa"] = "local" if values["numa_mode"] == "auto" else values["numa_mode"]
    if values["lmcache_instance_id"]:
        settings["instance_id"] = values["lmcache_instance_id"]
    own = (values["extra_config"] or {}).get("server") or {}
    if not isinstance(own, Mapping):
        raise ConfigError("'extra_config.server' has settings of `lmcache server` by name, such as l1_numa: interleave")
    if values["enable_blending"]:
        if find_spec("lmcache_blend") is None:
            raise ConfigError("'enable_blending' is True: pip install lmcache-blend")
        settings["engine_type"] = ["blend"]
        plugins.append("blend")
    peers = peer_settings(values, own, worker)
    if peers:
        settings |= peers
        plugins += ["p2p", "fleet_member"]
    has_adapters = bool(adapters or own.get("l2_adapter"))
    if (has_adapters or peers) and role(values) not in ("receiver", "both"):
        settings["l2_prefetch_policy"] = "retain"
        plugins.append("policies")
    if has_adapters:
        if (not values["local_cpu"] or _is_stored_below(values)) and not peers:  # who read out of memory
            settings["l2_store_policy"] = "skip_l1"
            plugins.append("policies")
    elif values["store_location"] is not None:
        check_locations("store_location", [values["store_location"]], tiers(values))
    plugins += own.get("plugins", ())
    return {**settings, **own, "plugins": list(dict.fromkeys(plugins))}


def tiers(values: Mapping[str, Any]) -> list[str]:
    """Names of the configured tiers, in the order in which they are asked."""
    peers = [name for key, name in PEERS.items() if values[key]]
    return [MEMORY, *peers] + [DISK] * _has_disk(values) + [REMOTE] * bool(values["remote_url"])


def asks_memory_alone(name: str, locations: Sequence[str] | None, there: Sequence[str]) -> bool:
    """Of all tiers that are there, or of memory alone.  Raises ConfigError for other locations."""
    if locations is None:
        return False
    check_locations(name, locations, (MEMORY, *PEERS.values(), DISK, REMOTE))
    if {*there} <= {*locations}:
        return False
    if set(locations) == {MEMORY}:
        return True
    raise ConfigError(f"'{name}' is {list(locations)}: lookups ask {MEMORY} alone, or all of {', '.join(there)}")


def check_locations(name: str, locations: Sequence[str], there: Sequence[str]) -> None:
    """Raises ConfigError for a location that is not in `there`."""
    if unknown := [each for each in locations if each not in there]:
        raise ConfigError(f"'{name}': no tier is called {unknown[0]!r} here; there are {', '.join(there)}")


def _is_stored_below(values: Mapping[str, Any]) -> bool:
    """All is stored in the one tier below memory, which is its buffer then.  Raises ConfigError for other locations."""
    location, there = values["store_location"], tiers(values)
    if location is None:
        return False
    check_locations("store_location", [location], there)
    if there == [MEMORY, location]:
        return True
    raise ConfigError(
        f"'store_location' is '{location}' of {', '.join(there)}: chunks are stored in all tiers, or in the only one below "
        "memory; leave the other tiers out"
    )


def _has_disk(values: Mapping[str, Any]) -> bool:
    return bool(values["local_disk"] and values["max_local_disk_size"])


def _adapters(values: Mapping[str, Any], worker: int) -> list[Adapter]:
    found = []
    if _has_disk(values):
        found.append(_disk(values, worker))
    if values["remote_url"]:
        found.append(remote(values["remote_url"], values["extra_config"] or {}))
    return found


def _disk(values: Mapping[str, Any], worker: int) -> Adapter:
    """A folder is one cache's: workers other than the first have theirs in it."""
    folder = Path(str(values["local_disk"]).removeprefix("file://"))
    if folder.is_dir() and any(folder.glob("*.pt")):
        raise ConfigError(f"'local_disk' {folder} has files of the public package (*.pt); name another folder")
    direct = bool((values["extra_config"] or {}).get("use_odirect", False))
    own = folder / f"worker-{worker}" if worker else folder
    adapter = _files(own, {"max_capacity_gb": values["max_local_disk_size"], "use_odirect": direct})
    adapter.settings["eviction"] = {"eviction_policy": str(values["cache_policy"]).upper()}
    return adapter


def _files(folder: Path, more: Mapping[str, Any]) -> Adapter:
    kind = "fs_native" if find_spec("lmcache_l2_fs_native") and find_spec("lmcache_native") else "fs"
    return Adapter(kind, {"type": kind, "base_path": str(folder), **more})


def remote(url: str, extra: Mapping[str, Any]) -> Adapter:
    """The adapter for a `remote_url`.  `extra`: the keys of `extra_config`.  Raises ConfigError for a scheme without one, and
    where something is missing."""
    scheme, colon, _ = url.partition("://")
    read = _REMOTE.get(scheme) if colon else None
    if read is None:
        raise ConfigError(f"'remote_url' is '{scheme}{colon}...': understood are {_SCHEMES}")
    return read(url, extra)


def _redis(url: str, extra: Mapping[str, Any]) -> Adapter:
    return Adapter(
        "redis", {"type": "redis", "url": "redis" + url[len("valkey") :] if url.startswith("valkey:") else url}
    )


def _shared_files(url: str, extra: Mapping[str, Any]) -> Adapter:
    return _files(Path(urlsplit(url).path), {})


def _s3(url: str, extra: Mapping[str, Any]) -> Adapter:
    """A bucket of AWS, or a host, which has a port, a path or the name of AWS."""
    host = url.partition("://")[2].rstrip("/")
    is_host = ".amazonaws.com" in host or ":" in host or "/" in host
    settings = {"type": "s3", "s3_endpoint": host if is_host else f"s3://{host}", **_taken(extra, _S3)}
    if "s3_region" not in settings:
        raise ConfigError("'remote_url' is 's3://...': extra_config has no s3_region, with which requests are signed")
    if prefix := str(extra.get("s3_file_prefix") or "").strip("/"):
        settings["prefix"] = f"{prefix}/"
    return Adapter("s3", settings)


def _mooncake(url: str, extra: Mapping[str, Any]) -> Adapter:
    """The address is that of the master."""
    master = urlsplit(url).netloc
    settings = {"type": "mooncake_store", "master_server_addr": master, **_taken(extra, _MOONCAKE)}
    if not master or "local_hostname" not in settings:
        raise ConfigError(
            "'remote_url' of a Mooncake Store is mooncakestore://host:port of its master, and extra_config has "
            "local_hostname: under which name or address its members reach this machine"
        )
    if device := extra.get("device_name"):
        settings["rdma_devices"] = device
    return Adapter("mooncake_store", settings)


def _lm(url: str, extra: Mapping[str, Any]) -> Adapter:
    return Adapter("lm", {"type": "lm", **_address(url)})


def _infinistore(url: str, extra: Mapping[str, Any]) -> Adapter:
    device = parse_qs(urlsplit(url).query).get("device", [])
    more = {"dev_name": device[0]} if device else {}
    return Adapter("infinistore", {"type": "infinistore", **_address(url), **more})


def _address(url: str) -> dict[str, Any]:
    """Host, and port where there is one.  Raises ConfigError."""
    parts = urlsplit(url)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host:
        raise ConfigError(f"'remote_url' is '{url}': expected {parts.scheme}://HOST:PORT")
    return {"host": host} if port is None else {"host": host, "port": port}


def _taken(extra: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: extra[name] for name in names if extra.get(name) is not None}


_REMOTE: Final[Mapping[str, Callable[[str, Mapping[str, Any]], Adapter]]] = {
    "redis": _redis,
    "rediss": _redis,
    "unix": _redis,
    "valkey": _redis,
    "s3": _s3,
    "mooncake": _mooncake,
    "mooncakestore": _mooncake,
    "lm": _lm,
    "infinistore": _infinistore,
    "file": _shared_files,
    "fs": _shared_files,
}
