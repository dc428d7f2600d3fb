"""The admin API as an application: every route, behind one guard and one way to fail."""

from __future__ import annotations

from typing import Any, Final

from litestar import Litestar
from litestar.connection import ASGIConnection
from litestar.exceptions import NotAuthorizedException
from litestar.handlers import BaseRouteHandler

from lmcache_core.admin.ports import AdminPorts
from lmcache_core.admin.problem import problem
from lmcache_core.admin.routes.cache import cache_routes
from lmcache_core.admin.routes.quota import quota_routes
from lmcache_core.admin.routes.status import status_routes
from lmcache_core.admin.token import carries

BODY_BYTES_MAX: Final = 64 * 1024


def build_api(token: str | None, ports: AdminPorts) -> Litestar:
    """With a token, nothing is answered to who does not bring it, no matter the route."""

    def needs_token(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        if token is not None and not carries(connection.headers.get("authorization"), token):
            raise NotAuthorizedException("a Bearer token is needed", headers={"WWW-Authenticate": "Bearer"})

    return Litestar(
        route_handlers=[
            *status_routes(ports.status, ports.health),
            *quota_routes(ports.quotas),
            *cache_routes(ports.cache),
        ],
        guards=[needs_token],
        exception_handlers={Exception: problem},
        request_max_body_size=BODY_BYTES_MAX,
        openapi_config=None,
        logging_config=None,
    )
