"""The settings that can be changed while the server runs, with the checks of those that it is started with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, create_model, field_validator

from lmcache_core.app.setting_groups import name_or_object
from lmcache_core.app.settings import ServerSettings
from lmcache_core.contracts.settings import validate
from lmcache_core.controllers.store_queue import DropRule, StoreLimits

GIB: Final = 2**30
POLICIES: Final = ("eviction_policy", "l2_store_policy", "l2_prefetch_policy")
CHANGEABLE: Final = (
    "eviction_policy",
    "eviction_trigger_watermark",
    "eviction_ratio",
    "default_quota_gb",
    "reject_unsalted",
    "l1_allocation_wait_ms",
    "l1_prefetch_max_ratio",
    "lookup_timeout_seconds",
    "l2_store_policy",
    "l2_prefetch_policy",
    "l2_prefetch_max_in_flight",
    "l2_timeout_seconds",
    "l2_store_max_backlog_gb",
    "l2_store_max_backlog_seconds",
    "l2_store_drop",
)
"""In the order in which they are shown."""


class _Values(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


_FIELDS: Final[dict[str, Any]] = {
    name: (field.annotation, field) for name, field in ServerSettings.model_fields.items()
}
_Model: Final = create_model(
    "RunningSettings",
    __base__=_Values,
    __validators__={"policies": field_validator(*POLICIES, mode="before")(name_or_object)},
    **{name: _FIELDS[name] for name in CHANGEABLE},
)


class RunningSettings:
    """Values by name.  Immutable."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        """Raises ConfigError that names the field and what is allowed."""
        checked = validate(_Model, values, "settings")
        self._values: dict[str, Any] = {name: getattr(checked, name) for name in CHANGEABLE}

    @classmethod
    def of(cls, settings: ServerSettings) -> RunningSettings:
        """As the server is started."""
        return cls({name: getattr(settings, name) for name in CHANGEABLE})

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def but(self, changes: Mapping[str, Any]) -> RunningSettings:
        """These with other values.  Raises ConfigError."""
        return RunningSettings({**self._values, **changes})

    def differences(self, other: RunningSettings) -> list[str]:
        """Names of what is different there."""
        return [name for name in CHANGEABLE if self._values[name] != other[name]]

    def policy_name(self, name: str) -> str:
        given = self._values[name]
        return str(given["type"] if isinstance(given, Mapping) else given)

    def store_limits(self, l1_size_gb: float) -> StoreLimits:
        gigabytes = self._values["l2_store_max_backlog_gb"]
        return StoreLimits(
            int((l1_size_gb / 2 if gigabytes is None else gigabytes) * GIB),
            self._values["l2_store_max_backlog_seconds"],
            DropRule(self._values["l2_store_drop"]),
        )

    @property
    def default_quota_bytes(self) -> int | None:
        gigabytes = self._values["default_quota_gb"]
        return None if gigabytes is None else round(gigabytes * GIB)
