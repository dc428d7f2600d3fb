"""Settings of the `infinistore` adapter."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from lmcache_core import PluginSettings


class InfinistoreSettings(PluginSettings):
    """Which InfiniStore, and how bytes travel."""

    host: Annotated[str, Field(min_length=1, description="Host of the InfiniStore server.")] = "localhost"
    port: Annotated[int, Field(ge=1, le=65535, description="Its service port.")] = 12345
    connection_type: Annotated[
        Literal["rdma", "tcp"], Field(description="rdma: straight between L1 and the server; tcp: with one copy more.")
    ] = "rdma"
    dev_name: Annotated[str, Field(min_length=1, description="The RDMA device of this machine.")] = "mlx5_0"
    ib_port: Annotated[int, Field(ge=1, le=255, description="Port of the RDMA device.")] = 1
    link_type: Annotated[Literal["IB", "Ethernet"], Field(description="Link of the RDMA device.")] = "IB"
    key_prefix: Annotated[str, Field(max_length=200, description="What the names of all objects begin with.")] = (
        "lmcache/"
    )
    num_connections: Annotated[
        int, Field(ge=1, le=64, description="Objects on their way at the same time, each on a connection.")
    ] = 8
