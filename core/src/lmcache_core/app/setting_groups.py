"""Core's settings of `lmcache server`, one class for each heading of `--help`.  Plugins bring more (`SettingGroup`).

Flags, `--help` and docs/reference/configuration.md are generated from this file: a class's docstring is its heading.
Sizes in GB are GiB.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from lmcache_core.kernels.choice import NativeMode
from lmcache_core.model.names import parse_salt


def name_or_object(value: Any) -> Any:
    """What names a policy.  Raises ValueError."""
    given = from_json(value) if isinstance(value, str) and value.lstrip().startswith("{") else value
    name = given.get("type") if isinstance(given, dict) else given
    if not isinstance(name, str) or not name:
        raise ValueError('expected a name, or a JSON object such as {"type": "LRU"}')
    return given


def json_objects(value: Any, example: str) -> tuple[dict[str, Any], ...]:
    """One object or several, as JSON or as a file has them."""
    given = from_json(value) if isinstance(value, str) else value
    items = [given] if isinstance(given, dict) else given
    if not isinstance(items, list | tuple):
        raise ValueError(f"expected a JSON object such as {example}")
    objects = [from_json(item) if isinstance(item, str) else item for item in items]
    for index, item in enumerate(objects):
        if not isinstance(item, dict):
            raise ValueError(f"[{index}] is not a JSON object; expected one such as {example}")
    return tuple(objects)


def from_json(text: str) -> Any:
    """Raises ValueError that says where it is not JSON, or which key is given twice."""
    try:
        return json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key '{twice}' is given twice")
    return values


GIB: Final = 2**30
LIMIT_GB_MAX: Final = 2**30
"""An EiB."""
QUOTA_EXAMPLE: Final = '{"tenant-a": 2.5}'


def check_quotas(quotas: Iterable[Mapping[Any, Any]]) -> None:
    """Raises ValueError that names the salt: one that is none, one that is given twice, or a limit that is not a size."""
    seen = set()
    for salt, gigabytes in ((salt, size) for sizes in quotas for salt, size in sizes.items()):
        try:
            parse_salt(str(salt))
        except ValueError as error:
            raise ValueError(f"salt {str(salt)[:40]!r}: {error}") from None
        if isinstance(gigabytes, bool) or not isinstance(gigabytes, int | float) or not 0 <= gigabytes <= LIMIT_GB_MAX:
            raise ValueError(f"salt '{salt}': {str(gigabytes)[:40]!r} is not a number of GiB from 0 to {LIMIT_GB_MAX}")
        if salt in seen:
            raise ValueError(f"salt '{salt}' is given twice")
        seen.add(salt)


def quota_bytes(quotas: Iterable[Mapping[str, float]]) -> dict[str, int]:
    """Limits in bytes by salt, of what `check_quotas` found right."""
    return {parse_salt(salt): round(gigabytes * GIB) for sizes in quotas for salt, gigabytes in sizes.items()}


Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Threads = Annotated[int, Field(ge=1, le=10_000)]
Gigabytes = Annotated[float, Field(gt=0, le=2**20, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, le=10**8, allow_inf_nan=False)]
PositiveSeconds = Annotated[float, Field(gt=0, le=10**8, allow_inf_nan=False)]
Ratio = Annotated[float, Field(gt=0, le=1)]
Limit = Annotated[float, Field(ge=0, le=LIMIT_GB_MAX)]


class _Group(BaseModel):
    """Its validator is never asked for: `ServerSettings` has one for all groups."""

    model_config: ClassVar[ConfigDict] = ConfigDict(defer_build=True)


class EnginePortSettings(_Group):
    """Engine port"""

    host: str = Field(
        "localhost",
        min_length=1,
        description="Where engines connect: an address, or ipc:///path for a Unix socket of this machine, where --port "
        "does not count. Their protocol has no passwords.",
    )
    port: int = Field(5555, ge=0, le=65535, description="TCP port for engines; 0: any free one.")
    engine_users: tuple[str, ...] = Field(
        (),
        description="Users of this machine, by name or number, whose engines may connect besides this server's own user and "
        "root; `any`: all users. Repeatable; comma list in the environment.",
    )
    max_workers: Threads = Field(1, description="Threads in each of the two request pools, unless set for one of them.")
    max_cpu_workers: Threads | None = Field(None, description="Threads for requests that any thread may answer.")
    max_gpu_workers: Threads | None = Field(
        None, description="Threads for requests that stay on one thread per engine."
    )
    max_message_mb: Count = Field(4096, description="Largest frame in MiB that an engine may send; more is dropped.")
    send_patience_seconds: PositiveSeconds = Field(
        60.0, description="How long an engine may leave its answers unread; then its connection is closed."
    )
    drain_seconds: Seconds = Field(
        10.0, description="How long a stop may take to get stores to L2; adapters are closed in what is left of it."
    )


class CacheSettings(_Group):
    """Cache identity"""

    instance_id: str | None = Field(
        None,
        min_length=1,
        max_length=128,
        description="Stable name of this server; without one it gets a random UUID at each start.",
    )
    chunk_size: int = Field(256, ge=1, le=2**20, description="Tokens per chunk, the unit of storing and reuse.")
    hash_algorithm: Literal["blake3", "sha256_cbor"] = Field("blake3", description="Chain that names chunks.")
    engine_type: tuple[str, ...] = Field(
        (),
        description="Request module of a plugin to add; `default` adds none. Repeatable; comma list in the environment.",
    )
    supported_transfer_mode: Literal["auto", "engine_driven", "lmcache_driven"] = Field(
        "auto", description="Who moves bytes between engine and L1."
    )


class L1Settings(_Group):
    """L1 (memory)"""

    l1_size_gb: float = Field(5.0, ge=0.001, le=2**20, allow_inf_nan=False, description="Size of L1 in GiB.")
    l1_overcommit: bool = Field(
        False,
        description="Start although L1 and the server need more memory than the machine or the control group has: the kernel "
        "ends the server when L1 fills, unless there is swap.",
    )
    l1_use_lazy: bool = Field(
        True,
        description="Allocate memory as it is needed, a little ahead; without it all of L1 is allocated from the start "
        "on, while the server already serves.",
    )
    l1_init_size_gb: float = Field(
        0.0,
        ge=0,
        le=2**20,
        allow_inf_nan=False,
        description="GiB of L1 to allocate at the start, where the rest is as needed.",
    )
    l1_use_hugepages: bool = Field(
        False,
        description="Huge pages for L1: transparent ones, or reserved ones with --no-l1-shared-memory (engines cannot "
        "map those); a warning says how to get them where there are none.",
    )
    l1_numa: str = Field(
        "off",
        pattern=r"^(off|interleave|local|[0-9]{1,4})$",
        description="Memory nodes that L1 lies on: interleave (all in turn), local (that of the thread that allocates), "
        "the number of one node to prefer, or off (as the kernel likes).",
    )
    l1_allocation_wait_ms: float = Field(
        20.0,
        ge=0,
        le=10**6,
        allow_inf_nan=False,
        description="How long a store that finds L1 full waits for eviction before it stores what there is room for; it "
        "is frozen for as long as that, and stops waiting when other engines wait for its thread. 0: never.",
    )
    l1_align_bytes: int = Field(4096, ge=4096, le=2**30, description="Alignment of objects in L1: a power of two.")
    l1_shared_memory: bool = Field(
        True, description="Engines map L1; without it their bytes travel through the engine port."
    )
    l1_verify_reads: bool = Field(
        False,
        description="Keep a digest of each object outside of the shared memory, and compare it before the object is read "
        "or stored to L2: what an engine of the server's user has overwritten since it was published is dropped. Costs a "
        "pass over the bytes of each store and each retrieve.",
    )
    shm_name: str = Field(
        "",
        max_length=200,
        pattern=r"^[A-Za-z0-9._-]*$",
        description="Name of the shared-memory segment; without one it is named after the server.",
    )
    l1_write_ttl_seconds: PositiveSeconds = Field(
        600.0, description="How long a worker may take to fill what it reserved."
    )
    l1_read_ttl_seconds: PositiveSeconds = Field(
        300.0, description="How long a lookup's chunks are held for its request."
    )
    l1_pin_max_ratio: float = Field(
        0.25, ge=0, le=0.9, description="Share of L1 that operators may pin by the admin API; 0: nothing."
    )
    l1_journal_entries: int = Field(
        262_144,
        ge=1,
        le=2**31,
        description="Keys whose last changes are kept, 32 bytes each, while a plugin follows what L1 has; one that is farther "
        "behind reads everything again.",
    )


class EvictionSettings(_Group):
    """Eviction"""

    eviction_policy: str | dict[str, Any] = Field(
        "LRU", description="Which objects leave L1 first: a name, or a JSON object with its `type` and its settings."
    )
    eviction_trigger_watermark: Ratio = Field(0.8, description="Used share of L1 at which eviction starts.")
    eviction_ratio: Ratio = Field(0.2, description="Share of the used part of L1 that one eviction frees.")


class TenantSettings(_Group):
    """Tenants (cache salts)"""

    quota: tuple[dict[str, Limit], ...] = Field(
        (),
        description="GiB of L1 that a cache salt may use, as a JSON object of limits by salt; `_default` is the empty salt, "
        "and 0 keeps a salt uncached. Repeatable. Needs an eviction policy such as IsolatedLRU.",
    )
    default_quota_gb: Limit | None = Field(
        None, description="GiB of L1 for each salt without a quota; 0: only salts with a quota are cached."
    )
    reject_unsalted: bool = Field(
        False, description="Answer requests without a cache salt as if nothing were cached, and store nothing for them."
    )


class L2Settings(_Group):
    """L2 (storage)"""

    l2_adapter: tuple[dict[str, Any], ...] = Field(
        (),
        description="A storage backend as a JSON object with its `type`. Repeatable; "
        "stores go to all of them, loads ask them in this order. In the environment: one object, or a JSON list.",
    )
    l2_store_policy: str | dict[str, Any] = Field(
        "default",
        description="Which objects go to which backend: a name, or a JSON object with its `type` and its settings.",
    )
    l2_prefetch_policy: str | dict[str, Any] = Field(
        "default",
        description="Which backend an object is loaded from: a name, or a JSON object with its `type` and its settings.",
    )
    l2_prefetch_max_in_flight: Count = Field(8, description="Lookups that may load from L2 at once.")
    l1_prefetch_max_ratio: Ratio = Field(
        0.5,
        description="Share of L1 for chunks from L2 that wait for their readers; more loads wait, and a larger one is alone.",
    )
    lookup_timeout_seconds: PositiveSeconds = Field(
        15.0, description="How long a lookup may take; then it is answered with what has come from L2 so far."
    )
    l2_timeout_seconds: PositiveSeconds = Field(30.0, description="How long a backend may take for one job.")
    l2_store_max_backlog_gb: Gigabytes | None = Field(
        None, description="GiB that may wait for one backend before stores to it are dropped; half of L1 unless set."
    )
    l2_store_max_backlog_seconds: PositiveSeconds = Field(
        60.0,
        description="How long what waits for one backend may take at the speed it has shown before stores to it are dropped.",
    )
    l2_store_drop: Literal["newest", "oldest", "deepest"] = Field(
        "deepest",
        description="Which waiting chunks are dropped then: those that came last, those that came first, "
        "or those that lie deepest in their prompts.",
    )


class LifecycleSettings(_Group):
    """Workers and sessions"""

    worker_reap_timeout_seconds: Seconds = Field(
        120.0,
        description="A worker silent for so long is dropped; its slots come back when its connection is closed.  0: never.",
    )
    worker_registration_grace_seconds: Seconds = Field(
        3600.0, description="A worker that never pinged is dead after so long; 0: never."
    )
    session_ttl_seconds: PositiveSeconds = Field(
        600.0, description="How long a prompt is remembered that does not come again."
    )


class ObservabilitySettings(_Group):
    """Observability"""

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = Field("INFO", description="What is logged.")
    log_style: Literal["text", "json"] = Field("text", description="Log lines for people, or one JSON object each.")
    event_bus_queue_size: Count = Field(
        10000, description="Events that may wait for one subscriber; more are dropped and counted."
    )
    event_subscriber_timeout_seconds: PositiveSeconds = Field(
        1.0, description="How long a subscriber may take for one event before `/status` calls it stuck."
    )
    event_subscriber_cpu_ratio: Ratio = Field(
        0.25, description="Share of one core that a subscriber may use; one that needs more falls behind."
    )
    disable_observability: bool = Field(False, description="No subscriber at all: no metrics, no event log.")
    disable_logging: bool = Field(False, description="No log lines about events.")


class PluginSelectionSettings(_Group):
    """Plugins and configuration"""

    plugins: tuple[str, ...] = Field(
        (),
        json_schema_extra={"flag": "plugin"},
        description="Consider only this plugin (and the built-in ones). Repeatable; comma list in the environment.",
    )
    no_plugins: tuple[str, ...] = Field(
        (),
        json_schema_extra={"flag": "no-plugin"},
        description="Never load this plugin. Repeatable; comma list in the environment.",
    )
    safe_mode: bool = Field(False, description="Consider core's own plugin alone; nothing else is imported.")
    native: NativeMode = Field(
        "auto",
        description="Compiled inner loops. auto: where lmcache-native is installed and fits; on: refuse to start without "
        "it; off: pure Python.",
    )
    offer_settings: dict[str, dict[str, Any]] = Field(
        {},
        description="Settings of subscribers, request modules and HTTP routes, a JSON object by kind:name such as "
        '`{"subscriber:log": {}}`. What is not active by itself becomes so by being named here.',
    )
    config: str | None = Field(
        None, min_length=1, json_schema_extra={"metavar": "PATH"}, description="Settings file, YAML or TOML."
    )
