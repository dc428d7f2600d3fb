"""An HTTP API as an application: every route behind one guard, with one form of errors and one description."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from http import HTTPStatus
from typing import Any, Final

from litestar import Litestar, Response, get
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from litestar.types import ASGIApp

from lmcache_http.access import operation_of, token_guard
from lmcache_http.admin_api.server import ApiDescription
from lmcache_http.direct import Direct
from lmcache_http.openapi import BODY_BYTES_MAX, ApiAbout, DescribedRoute, Operation, openapi_document
from lmcache_http.problem import ProblemError, problem
from lmcache_http.tokens import Tokens

DOCUMENT: Final = "/openapi.json"
_DESCRIBES: Final = Operation("This description of the API.", ApiDescription)


def http_app(
    about: ApiAbout,
    routes: Sequence[BaseRouteHandler],
    tokens: Tokens | None,
    more: Sequence[BaseRouteHandler] = (),
    described: Sequence[DescribedRoute] = (),
) -> ASGIApp:
    """`more` are routes that are described by `described` alone, if at all.  With tokens, every request needs one, except for
    open routes."""
    known = [*described_routes(routes), *described]

    @cache
    def document() -> bytes:
        return json.dumps(openapi_document(about, known)).encode()

    @get(DOCUMENT, operation=_DESCRIBES)
    async def description() -> Response[bytes]:
        return Response(document(), media_type="application/json")

    guards = [token_guard(tokens), refuse_what_is_not_read]
    app = Litestar(
        route_handlers=[*routes, *more, description],
        guards=guards,
        exception_handlers={Exception: problem},
        request_max_body_size=BODY_BYTES_MAX,
        openapi_config=None,
        logging_config=None,
    )
    return Direct(app, guards)


def described_routes(handlers: Sequence[BaseRouteHandler]) -> list[DescribedRoute]:
    """Each method of each path, and the description itself."""
    routes = [DescribedRoute("GET", DOCUMENT, _DESCRIBES)]
    for handler in handlers:
        assert isinstance(handler, HTTPRouteHandler)
        routes += [
            DescribedRoute(method, path, operation_of(handler))
            for path in handler.paths
            for method in handler.http_methods
        ]
    return routes


def refuse_what_is_not_read(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Refuse a query or a body that the route does not read: the caller expects an effect."""
    about = operation_of(handler)
    if about.query is None and connection.scope["query_string"]:
        raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "this route takes no query; leave it out")
    has_body = connection.headers.get("content-length", "0") != "0" or "transfer-encoding" in connection.headers
    if not about.has_body and has_body:
        raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "this route takes no body; leave it out")
