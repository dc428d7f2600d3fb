"""Is the server there, is it well, and how is it?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any

from litestar import Response, get
from litestar.handlers import BaseRouteHandler

import lmcache_core


def status_routes(
    status: Callable[[], dict[str, Any]], health: Callable[[], tuple[bool, str]]
) -> Sequence[BaseRouteHandler]:
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

    return root, healthcheck, details
