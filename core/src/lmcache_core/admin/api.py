"""The admin API as an application: every route, behind one guard and one way to fail."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from http import HTTPStatus
from typing import Any, Final

from litestar import Litestar, Response, get
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler

import lmcache_core
from lmcache_core.admin.access import operation_of, token_guard
from lmcache_core.admin.cache_ports import CachePorts
from lmcache_core.admin.openapi import DescribedRoute, openapi_document
from lmcache_core.admin.operation import BODY_BYTES_MAX, Operation
from lmcache_core.admin.plugin_calls import PluginCalls
from lmcache_core.admin.plugin_route import PluginRoute
from lmcache_core.admin.ports import AdminPorts
from lmcache_core.admin.problem import ProblemError, problem
from lmcache_core.admin.routes.adapters import adapter_routes
from lmcache_core.admin.routes.cache import cache_routes
from lmcache_core.admin.routes.checksums import checksum_routes
from lmcache_core.admin.routes.config import config_routes
from lmcache_core.admin.routes.deletions import deletion_routes
from lmcache_core.admin.routes.log_level import log_level_routes
from lmcache_core.admin.routes.objects import object_routes
from lmcache_core.admin.routes.pins import pin_routes
from lmcache_core.admin.routes.plugin_routes import operation, plugin_routes
from lmcache_core.admin.routes.plugins import plugins_routes
from lmcache_core.admin.routes.prefetches import prefetch_routes
from lmcache_core.admin.routes.quota import quota_routes
from lmcache_core.admin.routes.reconfigure import reconfigure_routes
from lmcache_core.admin.routes.settings import setting_routes
from lmcache_core.admin.routes.status import status_routes
from lmcache_core.admin.routes.threads import threads_routes
from lmcache_core.admin.routes.version import version_routes
from lmcache_core.admin.schemas_server import ApiDescription
from lmcache_core.admin.token import Tokens

_DOCUMENT: Final = "/openapi.json"


def build_api(
    tokens: Tokens | None, ports: AdminPorts, plugins: Sequence[PluginRoute], plugin_calls: PluginCalls
) -> Litestar:
    """With tokens, nothing is answered to who brings none, but for the routes that are open.  `plugin_calls` are the
    caller's to close."""
    core = core_routes(ports)
    described = [*described_routes(core), *(_described_plugin(each) for each in plugins)]

    @cache
    def document() -> bytes:
        return json.dumps(openapi_document(described, lmcache_core.__version__)).encode()

    @get(_DOCUMENT, operation=_DESCRIBES)
    async def description() -> Response[bytes]:
        return Response(document(), media_type="application/json")

    return Litestar(
        route_handlers=[*core, *plugin_routes(plugins, plugin_calls), description],
        guards=[token_guard(tokens), takes_what_is_said],
        exception_handlers={Exception: problem},
        request_max_body_size=BODY_BYTES_MAX,
        openapi_config=None,
        logging_config=None,
    )


_DESCRIBES: Final = Operation("This description of the API.", ApiDescription)


def core_routes(ports: AdminPorts) -> list[BaseRouteHandler]:
    """Core's own, but for the one that describes all of them."""
    control = ports.control
    return [
        *status_routes(ports.status, ports.conditions),
        *version_routes(ports.version),
        *config_routes(control.settings, control.adapters),
        *plugins_routes(control.plugins),
        *threads_routes(control.threads),
        *log_level_routes(control.log_levels),
        *quota_routes(control.quotas),
        *cache_routes(control.cache),
        *_object_routes(ports.objects),
        *adapter_routes(control.adapters),
        *reconfigure_routes(control.adapters),
        *setting_routes(control.settings),
    ]


def _object_routes(cache: CachePorts) -> list[BaseRouteHandler]:
    return [
        *object_routes(cache),
        *deletion_routes(cache),
        *prefetch_routes(cache),
        *pin_routes(cache),
        *checksum_routes(cache),
    ]


def described_routes(handlers: Sequence[BaseRouteHandler]) -> list[DescribedRoute]:
    """Each method of each path of core's."""
    routes = [DescribedRoute("GET", _DOCUMENT, _DESCRIBES)]
    for handler in handlers:
        assert isinstance(handler, HTTPRouteHandler)
        routes += [
            DescribedRoute(method, path, operation_of(handler))
            for path in handler.paths
            for method in handler.http_methods
        ]
    return routes


class _NoServer:
    """Stands for every port where routes are only described."""

    def __getattr__(self, name: str) -> Any:
        return self


def every_core_route() -> list[BaseRouteHandler]:
    """Those of a server that has everything, to be looked at and not to be asked."""
    nothing: Any = _NoServer()
    return core_routes(AdminPorts(**{each.name: nothing for each in fields(AdminPorts)}))


def takes_what_is_said(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Refuse a query or a body that nobody would look at: it was meant for something."""
    about = operation_of(handler)
    if about.query is None and connection.scope["query_string"]:
        raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "this route takes no query; leave it out")
    has_body = connection.headers.get("content-length", "0") != "0" or "transfer-encoding" in connection.headers
    if about.body is None and has_body:
        raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "this route takes no body; leave it out")


def _described_plugin(plugin: PluginRoute) -> DescribedRoute:
    return DescribedRoute(plugin.route.method, plugin.route.path, operation(plugin.route))
