"""Is the server there, is it well, and how is it?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any

from litestar import Request, Response, get
from litestar.concurrency import sync_to_thread
from litestar.handlers import BaseRouteHandler

import lmcache_core
from lmcache_core import ServerState, ServerView, server_state, state_reason
from lmcache_http.access import is_let_in
from lmcache_http.admin_api.server import Alive, Serving, Status, Unhealthy
from lmcache_http.openapi import Operation


def status_routes(view: Callable[[], ServerView]) -> Sequence[BaseRouteHandler]:
    @get("/", operation=Operation("The server answers.", Alive))
    async def root() -> dict[str, Any]:
        return Alive(version=lmcache_core.__version__).model_dump()

    @get(
        "/healthcheck",
        operation=Operation(
            "Does the server serve? 200 where it does, also where it is degraded: something beside it does not work, "
            "such as an L2 adapter. For the probes of a cluster, which have no token; without one, no reason is given.",
            Serving,
            also={503: Unhealthy},
            open=True,
        ),
    )
    async def healthcheck(request: Request[Any, Any, Any]) -> Response[dict[str, Any]]:
        active = await sync_to_thread(lambda: view().conditions())
        state, reason = server_state(active), state_reason(active) if is_let_in(request) else None
        match state:
            case ServerState.HEALTHY:
                return Response({"status": "healthy"})
            case ServerState.DEGRADED:
                return Response(Serving(status="degraded", reason=reason).model_dump())
            case ServerState.UNHEALTHY:
                unhealthy = Unhealthy(reason=reason)
                return Response(unhealthy.model_dump(), status_code=HTTPStatus.SERVICE_UNAVAILABLE)

    @get("/status", operation=Operation("Everything that the server says of itself.", Status))
    async def details() -> dict[str, Any]:
        return dict(await sync_to_thread(lambda: view().status()))

    return root, healthcheck, details
