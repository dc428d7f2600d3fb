"""What callers send and are answered about changing a running server."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import ConfigDict, Field

from lmcache_http.models import Answer, QueryParameters, RequestBody

REMOVAL_SECONDS: Final = 60.0
REMOVAL_SECONDS_MAX: Final = 86_400.0
UNTIL_RESTART: Final = "Lasts until the server is restarted; what is to last goes into its configuration."


class AddAdapter(RequestBody):
    """An L2 adapter, as `--l2-adapter` takes it: its type, and its settings beside it."""

    model_config = ConfigDict(
        extra="allow", frozen=True, json_schema_extra={"examples": [{"type": "memory", "max_size_gb": 1.0}]}
    )
    type: str = Field(min_length=1, max_length=128, description="Name of an L2 adapter that is installed.")


class RemovalQuery(QueryParameters):
    """How patient a removal is."""

    deadline_seconds: float = Field(
        REMOVAL_SECONDS,
        ge=0,
        le=REMOVAL_SECONDS_MAX,
        allow_inf_nan=False,
        description="How long stores that wait, and jobs that are under way, may take; the rest is abandoned.",
    )
    force: bool = Field(False, description="Wait for nothing: what is under way is abandoned at once.")


_STATE: Final = {
    "name": "memory",
    "type": "memory",
    "index": 0,
    "state": "draining",
    "healthy": True,
    "objects_left": 12,
    "bytes_left": 98304,
    "jobs_in_flight": 1,
    "borrowed_bytes": 8192,
    "seconds_left": None,
    "drained": None,
    "abandoned": 0,
    "eviction_policy": None,
    "settings": {"type": "memory", "max_size_gb": 1.0},
    "note": UNTIL_RESTART,
}
_CHANGED: Final = {"name": "eviction_ratio", "before": 0.2, "after": 0.1, "state": "applied"}


def _frozen(example: dict[str, Any]) -> ConfigDict:
    return ConfigDict(frozen=True, json_schema_extra={"examples": [example]})


class AdapterState(Answer):
    """One L2 adapter."""

    model_config = _frozen(_STATE)
    name: str
    type: str
    index: int = Field(description="No other adapter of this server has it, or had it.")
    state: Literal["serving", "draining", "removing", "closing", "lingering", "removed"] = Field(
        description="`lingering`: it was closed and still has memory of L1, which stays in quarantine until it is released."
    )
    healthy: bool
    objects_left: int = Field(description="Stores on their way to it, waiting or handed over.")
    bytes_left: int
    jobs_in_flight: int
    borrowed_bytes: int = Field(description="Memory of L1 that it reads or writes just now, or has not released.")
    seconds_left: float | None = Field(description="Until the deadline of its removal.")
    drained: bool | None = Field(description="Of a removal: did everything that waited get there?  Null until then.")
    abandoned: int = Field(description="Objects of jobs that were abandoned at the deadline.")
    eviction_policy: str | None
    settings: dict[str, Any] = Field(description="As they were given, without secrets.")
    note: str = UNTIL_RESTART


class AdapterStates(Answer):
    """All L2 adapters, in the order in which loads ask them."""

    model_config = _frozen({"adapters": [_STATE]})
    adapters: list[AdapterState]


class ChangeSettings(RequestBody):
    """New values by the names of settings.  All of them are changed, or none."""

    model_config = ConfigDict(
        extra="allow",
        frozen=True,
        json_schema_extra={"examples": [{"eviction_ratio": 0.1, "eviction_policy": "LRU"}], "minProperties": 1},
    )


class SetSetting(RequestBody):
    """The new value of one setting."""

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra={"examples": [{"value": 0.1}]})
    value: Any


class ChangedSetting(Answer):
    """Values are as `/config` shows them, without secrets."""

    model_config = _frozen(_CHANGED)
    name: str
    before: Any
    after: Any
    state: Literal["applied", "under way"] = Field(
        "applied", description="`under way`: a new eviction policy still receives what L1 holds."
    )


class ChangedSettings(Answer):
    """What is different now; settings that had the value already are left out."""

    model_config = _frozen({"changed": [_CHANGED], "note": UNTIL_RESTART})
    changed: list[ChangedSetting]
    note: str = UNTIL_RESTART


class ChangeableSettings(Answer):
    """The settings that can be changed without a restart, as they apply now."""

    model_config = _frozen({"settings": {"eviction_ratio": 0.1}, "note": UNTIL_RESTART})
    settings: dict[str, Any]
    note: str = UNTIL_RESTART


class BackendStatus(Answer):
    """The adapters of one type."""

    model_config = _frozen({"enabled": True, "backend": "memory", "num_adapters": 1, "adapters": [_STATE]})
    enabled: bool
    backend: str
    num_adapters: int
    adapters: list[AdapterState]


class BackendChange(RequestBody):
    """What an operation of one backend needs; for `add`, the adapter's settings beside it."""

    model_config = ConfigDict(extra="allow", frozen=True, json_schema_extra={"examples": [{"adapter_index": 0}]})
    adapter_index: int | None = Field(
        None, ge=0, description="`index` of the adapter; without, the first of its type that stays."
    )
    force: bool = Field(False, description="For `remove`: wait for nothing.")
