"""What the admin API answers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from litestar import Litestar, Request, Response, get
from litestar.connection import ASGIConnection
from litestar.exceptions import HTTPException, NotAuthorizedException
from litestar.handlers import BaseRouteHandler

import lmcache_core
from lmcache_core.admin.token import carries

logger = logging.getLogger(__name__)

Status = Callable[[], dict[str, Any]]
Health = Callable[[], tuple[bool, str]]


def build_app(token: str | None, status: Status, health: Health) -> Litestar:
    """The API around two functions, which are called on threads of a pool, so that they may take locks."""

    @get("/", sync_to_thread=False)
    def root() -> dict[str, str]:
        return {"status": "ok", "service": "lmcache", "version": lmcache_core.__version__}

    @get("/healthcheck", sync_to_thread=True)
    def healthcheck() -> Response[dict[str, str]]:
        healthy, reason = health()
        if healthy:
            return Response({"status": "healthy"})
        return Response({"status": "unhealthy", "reason": reason}, status_code=HTTPStatus.SERVICE_UNAVAILABLE)

    @get("/status", sync_to_thread=True)
    def details() -> dict[str, Any]:
        return status()

    def needs_token(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        if token is not None and not carries(connection.headers.get("authorization"), token):
            raise NotAuthorizedException("a Bearer token is needed", headers={"WWW-Authenticate": "Bearer"})

    return Litestar(
        route_handlers=[root, healthcheck, details],
        guards=[needs_token],
        exception_handlers={Exception: _problem},
        openapi_config=None,
        logging_config=None,
    )


def _problem(request: Request[Any, Any, Any], error: Exception) -> Response[dict[str, Any]]:
    """An error as application/problem+json.  What went wrong inside is for the log, not for the caller."""
    if isinstance(error, HTTPException):
        code, detail, headers = error.status_code, error.detail, error.headers
    else:
        code, detail, headers = HTTPStatus.INTERNAL_SERVER_ERROR, "the server failed; its log says why", None
        logger.error("admin request failed path=%s", request.url.path, exc_info=error)
    return Response(
        {"type": "about:blank", "title": HTTPStatus(code).phrase, "status": code, "detail": detail},
        status_code=code,
        headers=headers,
        media_type="application/problem+json",
    )
