"""Quotas of cache salts, and clearing L1: what callers send and are answered.  Sizes in GB are GiB."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import ConfigDict, Field

from lmcache_http.models import Answer, RequestBody

GIB: Final = 2**30
LIMIT_GB_MAX: Final = 2.0**30
"""An EiB."""
_DIGITS: Final = 9  # a byte is the ninth digit of a GiB


def gigabytes(size_bytes: int | None) -> float | None:
    """As answers show sizes: exact to the byte for anything below a PiB."""
    return None if size_bytes is None else round(size_bytes / GIB, _DIGITS)


class SetQuota(RequestBody):
    """A limit; 0: the salt is not cached."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"limit_gb": 2.5}]})

    limit_gb: float = Field(ge=0, le=LIMIT_GB_MAX, allow_inf_nan=False)


class SaltUse(Answer):
    """Limit and use of one salt; without a limit it may use as much as there is."""

    limit_gb: float | None
    current_usage_gb: float
    limit_bytes: int | None
    current_usage_bytes: int


class SaltQuota(SaltUse):
    """The same with its name.  `exists` is false where the limit is not its own, but the default one."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "limit_gb": 2.0,
                    "current_usage_gb": 0.5,
                    "limit_bytes": 2147483648,
                    "current_usage_bytes": 536870912,
                    "cache_salt": "tenant-a",
                    "exists": True,
                }
            ]
        }
    )

    cache_salt: str
    exists: bool


class SaltQuotas(Answer):
    """Every salt that has a limit or anything in L1."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "users": {
                        "tenant-a": {
                            "limit_gb": 2.0,
                            "current_usage_gb": 0.5,
                            "limit_bytes": 2147483648,
                            "current_usage_bytes": 536870912,
                        }
                    },
                    "default_limit_gb": None,
                }
            ]
        }
    )

    users: dict[str, SaltUse]
    default_limit_gb: float | None


class QuotaWasSet(Answer):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"cache_salt": "tenant-a", "limit_gb": 2.5, "status": "ok"}]}
    )

    cache_salt: str
    limit_gb: float
    status: str = "ok"


class QuotaWasDeleted(Answer):
    model_config = ConfigDict(json_schema_extra={"examples": [{"cache_salt": "tenant-a", "status": "removed"}]})

    cache_salt: str
    status: str = "removed"


class Clear(RequestBody):
    """What is dropped.  What L2 holds is left to its adapters.  `force`: what is held, too, as soon as it is released."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"tier": "l1", "force": False}]})

    tier: Literal["l1"] = "l1"
    force: bool = False


class ClearedTier(Answer):
    """Objects that were dropped, and those that are there now: held, being written, or stored since."""

    tier: str
    objects: int
    objects_left: int


class Cleared(Answer):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"status": "ok", "cleared": {"tier": "l1", "objects": 40, "objects_left": 2}}]}
    )

    status: str = "ok"
    cleared: ClearedTier
