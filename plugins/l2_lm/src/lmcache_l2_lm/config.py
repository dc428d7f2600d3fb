"""Settings of the `lm` adapter."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from lmcache_core import PluginSettings

PORT: Final = 65432


class LmSettings(PluginSettings):
    """Which store, and how many connections to it."""

    host: Annotated[str, Field(min_length=1, description="Host of the store.")] = "localhost"
    port: Annotated[int, Field(ge=1, le=65535, description="Its port.")] = PORT
    num_connections: Annotated[
        int, Field(ge=1, le=256, description="Objects on their way at the same time, each on a connection.")
    ] = 8
    connect_timeout_seconds: Annotated[
        float, Field(gt=0, le=60, description="How long making a connection may take.")
    ] = 5.0
    timeout_seconds: Annotated[
        float, Field(ge=1, le=600, description="How long one operation may take, from its start and with all attempts.")
    ] = 20.0
