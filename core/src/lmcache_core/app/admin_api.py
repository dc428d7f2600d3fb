"""The admin API of a server, and what it answers with besides the server's other parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lmcache_core.admin.cache_ports import CachePorts
from lmcache_core.admin.plugin_route import PluginRoute
from lmcache_core.admin.server import AdminServer


@dataclass(frozen=True, slots=True, eq=False)
class AdminApi:
    server: AdminServer | None
    """None with `--no-http`."""
    routes: Sequence[PluginRoute]
    """Those of plugins, which it answers."""
    objects: CachePorts
    """What it says of single objects, and does to them."""

    @property
    def endpoint(self) -> str | None:
        return self.server.endpoint if self.server else None
