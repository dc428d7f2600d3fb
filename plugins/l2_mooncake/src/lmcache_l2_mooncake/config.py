"""Settings of the `mooncake_store` adapter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import ConfigDict, Field, field_validator, model_validator

from lmcache_core import PluginSettings

OWN: Final = frozenset({"num_workers", "key_prefix", "master_metrics_url"})
"""Fields that are not Mooncake's."""

Text = Annotated[str, Field(min_length=1)]


class MooncakeSettings(PluginSettings):
    """How this server joins a Mooncake Store.  Every other key is handed to Mooncake's `setup` as it is."""

    model_config = ConfigDict(extra="allow", frozen=True)

    num_workers: Annotated[int, Field(ge=1, le=256, description="Batch calls that transfer at the same time.")] = 4
    key_prefix: Annotated[
        str,
        Field(
            max_length=256,
            pattern=r"^[^\x00-\x1f\x7f]*$",
            description="In front of every object's name; separates clusters that share one store.",
        ),
    ] = ""
    master_metrics_url: Annotated[
        str | None,
        Field(
            pattern=r"^https?://[^/\s]+/?$",
            description="HTTP address of the master's metrics (http://host:9003): objects can be listed, and the store's "
            "usage is shown.",
        ),
    ] = None
    local_hostname: Annotated[
        Text, Field(description="Name or address under which other members of the store reach this server.")
    ]
    metadata_server: Annotated[
        Text, Field(description="Where members find each other: an address of etcd, redis or HTTP, or P2PHANDSHAKE.")
    ] = "P2PHANDSHAKE"
    master_server_addr: Annotated[
        Text, Field(description="host:port of mooncake_master, or the address of its high-availability backend.")
    ] = "127.0.0.1:50051"
    protocol: Annotated[
        Text, Field(description="How bytes travel: tcp, rdma, or another transport of the installed Mooncake.")
    ] = "tcp"
    rdma_devices: Annotated[
        str, Field(description="Devices for rdma, separated by commas; empty: found by Mooncake.")
    ] = ""
    global_segment_size: Annotated[
        int, Field(ge=0, description="Bytes of memory that this server adds to the store; 0: none.")
    ] = 16 << 20
    local_buffer_size: Annotated[
        int, Field(ge=0, description="Bytes that Mooncake keeps for copies of its own; objects do not pass through it.")
    ] = 16 << 20

    @field_validator("protocol")
    @classmethod
    def _in_small_letters(cls, protocol: str) -> str:
        return protocol.strip().lower()

    @model_validator(mode="after")
    def _is_flat(self) -> MooncakeSettings:
        for name, value in (self.model_extra or {}).items():
            if value is not None and not isinstance(value, str | int | float):
                raise ValueError(
                    f"field '{name}' is handed to Mooncake, which takes texts, numbers and switches only, and not "
                    f"{type(value).__name__}"
                )
        return self

    def for_setup(self) -> Mapping[str, str]:
        """Arguments of Mooncake's `setup`, each value as the text that it reads."""
        given = {name: value for name, value in self.model_dump().items() if name not in OWN and value is not None}
        return {name: _text(value) for name, value in given.items()}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
