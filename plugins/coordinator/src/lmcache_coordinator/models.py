"""What callers of the coordinator send and are answered, as JSON.  Sizes in GB are GiB."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field

from lmcache_coordinator.routing import PROMPT_TOKENS_MAX
from lmcache_http.models import Answer, RequestBody

GIB: Final = 2**30
LIMIT_GB_MAX: Final = 2.0**30
EVENTS_MAX: Final = 10_000
_DIGITS: Final = 10

InstanceId = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^/\x00-\x1f]+$")]


def gigabytes(size_bytes: int) -> float:
    """Exact to the byte for anything below a PiB."""
    return round(size_bytes / GIB, _DIGITS)


class Healthy(Answer):
    status: Literal["healthy"] = "healthy"


class Register(RequestBody):
    """A server that joins, or starts anew."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"instance_id": "server-1", "ip": "10.0.0.5", "http_port": 8080}]}
    )

    instance_id: InstanceId
    ip: str = Field("", max_length=256)
    http_port: int = Field(0, ge=0, le=65535)
    mq_port: int = Field(0, ge=0, le=65535)
    p2p_advertised_url: str = Field("", max_length=1024)
    metadata: dict[str, Any] = Field(default_factory=dict, max_length=64)
    incarnation: str = Field("", max_length=256, description="New with each start of the server.")
    chunk_tokens: int = Field(0, ge=0, le=PROMPT_TOKENS_MAX, description="Its chunk size; 0: not said.")
    chain: str = Field("", max_length=64, description="How it names chunks, such as `blake3`.")
    test_vector: str = Field(
        "",
        max_length=128,
        pattern=r"^([0-9a-fA-F]{2})*$",
        description="Its hash of a chunk of the tokens 0, 1, 2 and so on, in hex: servers with the same one name chunks alike.",
    )
    secret: bool = Field(
        False, description="Bind the id to a secret, which the answer has, and all later calls must bring."
    )


class Registered(Answer):
    instance_id: str
    re_registered: bool
    secret: str | None = None
    """64 hex digits."""


class Heartbeat(Answer):
    instance_id: str


class InstanceEntry(Answer):
    instance_id: str
    ip: str
    http_port: int
    registration_time: float
    metadata: dict[str, Any]
    p2p_advertised_url: str
    mq_port: int


class Instances(Answer):
    instances: list[InstanceEntry]


class QuotaAnswer(Answer):
    cache_salt: str
    limit_gb: float
    status: Literal["ok", "removed"]


class SaltStatus(Answer):
    cache_salt: str
    quota_limit_gb: float | None
    quota_exists: bool
    usage_gb: float


class AllSalts(Answer):
    total_gb: float
    by_cache_salt: list[SaltStatus]


class EventKey(RequestBody):
    chunk_hash_hex: str = Field(min_length=2, max_length=64, pattern=r"^([0-9a-fA-F]{2})+$")
    model_name: str = Field(max_length=1024)
    kv_rank: int = Field(ge=0, lt=2**32)
    cache_salt: str = Field("", max_length=256)
    object_group_id: int = Field(0, ge=0, lt=2**16)


class CacheEvent(RequestBody):
    type: Literal["store", "lookup", "delete"]
    key: EventKey
    bytes: int = Field(0, ge=0, le=2**50)


class Events(RequestBody):
    """What one server did in a shared backend; `seq` grows with each batch."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "instance_id": "server-1",
                    "seq": 1,
                    "events": [
                        {
                            "type": "store",
                            "key": {"chunk_hash_hex": "aa", "model_name": "m", "kv_rank": 0, "cache_salt": "user-a"},
                            "bytes": 1024,
                        }
                    ],
                }
            ]
        }
    )

    instance_id: InstanceId
    seq: int = Field(ge=0, lt=2**63)
    events: list[CacheEvent]


class Recorded(Answer):
    recorded: int


class DirectoryStats(Answer):
    """Beside these, the figures of views, under their names."""

    keys_by_location: list[LocationCount]
    size_bytes: int


class LocationCount(Answer):
    instance_id: str
    worker: int
    source: str
    keys: int
