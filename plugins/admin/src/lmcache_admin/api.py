"""The admin API as an application: every route, behind one guard and one way to fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from http import HTTPStatus
from typing import Any, Final

from litestar import get
from litestar.handlers import BaseRouteHandler
from litestar.types import ASGIApp

import lmcache_core
from lmcache_admin.parts import AdminParts
from lmcache_admin.routes.adapters import adapter_routes
from lmcache_admin.routes.cache import cache_routes
from lmcache_admin.routes.checksums import checksum_routes
from lmcache_admin.routes.config import config_routes
from lmcache_admin.routes.deletions import deletion_routes
from lmcache_admin.routes.log_level import log_level_routes
from lmcache_admin.routes.objects import object_routes
from lmcache_admin.routes.pins import pin_routes
from lmcache_admin.routes.prefetches import prefetch_routes
from lmcache_admin.routes.quota import quota_routes
from lmcache_admin.routes.reconfigure import reconfigure_routes
from lmcache_admin.routes.server import server_routes
from lmcache_admin.routes.settings import setting_routes
from lmcache_core import PluginRoute
from lmcache_http.application import http_app
from lmcache_http.openapi import ApiAbout, Operation
from lmcache_http.plugin_calls import PluginCalls
from lmcache_http.plugin_routes import described_plugin_routes, plugin_routes
from lmcache_http.problem import ProblemError
from lmcache_http.tokens import Tokens

METRICS: Final = "/metrics"
_ABOUT: Final = (
    "What a cache server tells its operators, and what they can change while it runs. Errors are problems (RFC 9457) whose "
    "`detail` names the thing, the limit and the remedy. With tokens, every request carries one, but for the routes that say "
    "otherwise; one with the scope `read` may do what GET does."
)


def api_about() -> ApiAbout:
    return ApiAbout("lmcache admin API", lmcache_core.__version__, _ABOUT)


def build_api(
    tokens: Tokens | None, parts: AdminParts, plugins: Sequence[PluginRoute], plugin_calls: PluginCalls
) -> ASGIApp:
    """`plugin_calls` are the caller's to close."""
    return http_app(
        api_about(),
        core_routes(parts),
        tokens,
        [*plugin_routes(plugins, plugin_calls), *_without_metrics(plugins)],
        described_plugin_routes(plugins),
    )


def core_routes(parts: AdminParts) -> list[BaseRouteHandler]:
    """Core's own, but for the one that describes all of them."""
    control = parts.control
    return [
        *server_routes(parts),
        *config_routes(control.settings, control.adapters),
        *log_level_routes(control.events),
        *quota_routes(control.quotas),
        *cache_routes(control.cache),
        *_object_routes(parts),
        *adapter_routes(control.adapters, parts.openings),
        *reconfigure_routes(control.adapters, parts.openings),
        *setting_routes(control.settings, parts.openings),
    ]


def _object_routes(cache: AdminParts) -> list[BaseRouteHandler]:
    return [
        *object_routes(cache),
        *deletion_routes(cache),
        *prefetch_routes(cache),
        *pin_routes(cache),
        *checksum_routes(cache),
    ]


class _NoServer:
    """The placeholder for all that routes ask, where they are only described."""

    def __getattr__(self, name: str) -> Any:
        return self


def every_core_route() -> list[BaseRouteHandler]:
    """Those of a server that has everything, to be looked at and not to be asked."""
    nothing: Any = _NoServer()
    return core_routes(AdminParts(**{each.name: nothing for each in fields(AdminParts)}))


def _without_metrics(plugins: Sequence[PluginRoute]) -> Sequence[BaseRouteHandler]:
    """Where no plugin has `/metrics`: a route that says how to have it."""
    if any(each.route.path == METRICS for each in plugins):
        return ()

    @get(
        METRICS,
        operation=Operation(
            "Metrics, where a plugin has them.",
            refusals={404: "no plugin has metrics"},
            media_type="text/plain",
            tag="plugins",
        ),
    )
    async def no_metrics() -> None:
        raise ProblemError(
            HTTPStatus.NOT_FOUND,
            "no plugin that is in use has metrics: pip install lmcache-observability, and leave out --disable-metrics, "
            "--disable-observability and --no-plugin observability",
        )

    return (no_metrics,)
