"""Settings of the `faulty` adapter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from lmcache_core.contracts.settings import PluginSettings

Chance = Annotated[float, Field(ge=0, le=1)]


class FaultySettings(PluginSettings):
    """Which adapter is wrapped, and how often what goes wrong."""

    inner: Annotated[str, Field(description="The installed L2 adapter that does the work.")] = "memory"
    inner_settings: Annotated[Mapping[str, Any], Field(description="Its settings.")] = {}
    seed: Annotated[int, Field(description="The same seed draws the same faults for the same jobs.")] = 0
    fail: Annotated[Chance, Field(description="Chance that a job fails.")] = 0.0
    stall: Annotated[Chance, Field(description="Chance that a job is never begun.")] = 0.0
    lose: Annotated[Chance, Field(description="Chance that a job is done and never answered.")] = 0.0
    tear: Annotated[Chance, Field(description="Chance that half of the bytes are stored or loaded.")] = 0.0
    delay: Annotated[Chance, Field(description="Chance that a job begins later.")] = 0.0
    delay_seconds: Annotated[float, Field(ge=0, description="How much later.")] = 0.05
    bytes_per_second: Annotated[float | None, Field(gt=0, description="Speed of stores and loads; none: full.")] = None
