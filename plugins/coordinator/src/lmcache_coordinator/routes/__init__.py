"""The coordinator's HTTP API.

Tokens: `read` may ask, `member` may do what servers do, `full` may do everything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from litestar.handlers import BaseRouteHandler

from lmcache_coordinator import __version__
from lmcache_coordinator.dashboard import dashboard_routes
from lmcache_coordinator.routes.directory import directory_routes
from lmcache_coordinator.routes.events import event_routes
from lmcache_coordinator.routes.instances import instance_routes
from lmcache_coordinator.routes.members import member_routes
from lmcache_coordinator.routes.pins import pin_routes
from lmcache_coordinator.routes.prefixes import prefix_routes
from lmcache_coordinator.routes.quotas import quota_routes
from lmcache_coordinator.routes.requests import StateCalls
from lmcache_http.openapi import ApiAbout

if TYPE_CHECKING:
    from lmcache_coordinator.coordinator import Coordinator

ABOUT: Final = ApiAbout("LMCache coordinator", __version__, "The coordinator of a fleet of KV-cache servers.")


def coordinator_routes(coordinator: Coordinator) -> Sequence[BaseRouteHandler]:
    states = StateCalls()
    return [
        *instance_routes(coordinator, states),
        *quota_routes(coordinator, states),
        *event_routes(coordinator),
        *member_routes(coordinator),
        *directory_routes(coordinator),
        *prefix_routes(coordinator),
        *pin_routes(coordinator, states),
        *dashboard_routes(coordinator),
    ]
