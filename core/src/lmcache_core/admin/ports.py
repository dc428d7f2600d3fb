"""What the admin API needs of the server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lmcache_core.admin.cache_ports import CachePorts
from lmcache_core.contracts.conditions import ActiveCondition
from lmcache_core.contracts.server_control import ServerControl
from lmcache_http.admin_api.server import Version


@dataclass(frozen=True, slots=True, eq=False)
class AdminPorts:
    """Called on threads of a pool, so that they may take locks."""

    status: Callable[[], dict[str, Any]]
    conditions: Callable[[], Sequence[ActiveCondition]]
    version: Callable[[], Version]
    control: ServerControl
    objects: CachePorts
