"""Is the server there, is it well, and how is it?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any

from litestar import Request, Response, get
from litestar.concurrency import sync_to_thread
from litestar.handlers import BaseRouteHandler

import lmcache_core
from lmcache_core.admin.access import is_let_in
from lmcache_core.admin.operation import Operation
from lmcache_core.admin.schemas_server import Alive, Healthy, Status, Unhealthy


def status_routes(
    status: Callable[[], dict[str, Any]], health: Callable[[], tuple[bool, str]]
) -> Sequence[BaseRouteHandler]:
    @get("/", operation=Operation("The server answers.", Alive))
    async def root() -> dict[str, Any]:
        return Alive(version=lmcache_core.__version__).model_dump()

    @get(
        "/healthcheck",
        operation=Operation(
            "Is the server well? For the probes of a cluster, which have no token; without one, no reason is given.",
            Healthy,
            also={503: Unhealthy},
            open=True,
        ),
    )
    async def healthcheck(request: Request[Any, Any, Any]) -> Response[dict[str, Any]]:
        healthy, reason = await sync_to_thread(health)
        if healthy:
            return Response(Healthy().model_dump())
        told = Unhealthy(reason=reason if is_let_in(request) else None)
        return Response(told.model_dump(), status_code=HTTPStatus.SERVICE_UNAVAILABLE)

    @get("/status", operation=Operation("Everything that the server says of itself.", Status))
    async def details() -> dict[str, Any]:
        return await sync_to_thread(status)

    return root, healthcheck, details
