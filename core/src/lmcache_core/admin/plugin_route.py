"""A plugin's route as the admin API holds it."""

from __future__ import annotations

from dataclasses import dataclass

from lmcache_core.contracts.http_route import HttpRoute


@dataclass(frozen=True, slots=True)
class PluginRoute:
    """`plugin` and `offer` are named where it fails."""

    plugin: str
    offer: str
    route: HttpRoute
