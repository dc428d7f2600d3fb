"""What the sidecar service is configured with."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from lmcache_core import PluginSettings


class SidecarSettings(PluginSettings):
    locations: tuple[str, ...] = ()
    """Programs, and folders of them."""
    config: dict[str, Any] = Field({})
    """What programs are given in `LMCACHE_RUNTIME_PLUGIN_CONFIG`; its `secrets` lists the places of secrets."""
