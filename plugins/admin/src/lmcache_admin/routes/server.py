"""Which server this is, whether it is well, and what its parts do."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from litestar import Request, Response, get
from litestar.concurrency import sync_to_thread
from litestar.handlers import BaseRouteHandler

import lmcache_core
from lmcache_admin.parts import AdminParts
from lmcache_core import CONTRACT_VERSION, ServerState, server_state, state_reason
from lmcache_http.access import is_let_in
from lmcache_http.admin_api.server import Alive, PluginAnswer, Plugins, Serving, Status, Threads, Unhealthy, Version
from lmcache_http.openapi import Operation
from lmcache_http.thread_list import thread_list


def server_routes(parts: AdminParts) -> Sequence[BaseRouteHandler]:
    view, plugins = parts.view, parts.control.plugins

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

    @get(["/version", "/lmc_version"], operation=Operation("The server's version, contract and Python.", Version))
    async def version() -> dict[str, Any]:
        info = view().info
        return Version(
            version=info.version,
            contract=CONTRACT_VERSION,
            python=platform.python_version(),
            native=parts.control.native,
            instance_id=info.instance_id,
        ).model_dump()

    @get("/plugins", operation=Operation("Every plugin, with its offers, its hooks and its faults.", Plugins))
    async def list_plugins() -> dict[str, Any]:
        return Plugins(plugins=[PluginAnswer(**row) for row in await sync_to_thread(plugins)]).model_dump()

    @get("/threads", operation=Operation("Every thread, what it has used and where it is.", Threads))
    async def list_threads() -> dict[str, Any]:
        rows = await sync_to_thread(lambda: thread_list(view().status()["threads"]))
        return Threads(threads=rows).model_dump()

    return root, healthcheck, details, version, list_plugins, list_threads
