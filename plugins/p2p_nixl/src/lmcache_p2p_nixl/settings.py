"""Settings of the channel."""

from __future__ import annotations

from pydantic import Field

from lmcache_core import PluginSettings


class NixlChannelSettings(PluginSettings):
    trusted_network: bool = Field(
        False,
        description="All who reach the address are trusted, on loopback all users of the machine: who reaches UCX's port "
        "can read and write this process's memory, and nothing is encrypted. The channel does not open without it.",
    )
    load_timeout: float = Field(
        30.0, gt=0, le=600, allow_inf_nan=False, description="Seconds without progress after which reads are abandoned."
    )
