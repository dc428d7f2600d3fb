"""The same changes under the paths that the public cache server has for them.

There an operation changes what is inside of one adapter, and each adapter has its own; here it brings or takes an adapter of
the type that the path names."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

from litestar import Request, get, post
from litestar.concurrency import sync_to_thread
from litestar.handlers import BaseRouteHandler

from lmcache_admin.openings import Openings
from lmcache_admin.routes.adapters import OPEN_SECONDS, changing
from lmcache_core import AdapterControl
from lmcache_http.admin_api.changes import REMOVAL_SECONDS, AdapterState, BackendChange, BackendStatus
from lmcache_http.openapi import Operation
from lmcache_http.problem import ProblemError
from lmcache_http.reading import path_part, read_body

OPERATIONS: Final = ("add", "drain", "resume", "remove")
_BACKEND: Final = {"backend": "Type of L2 adapter."}
_TAG: Final = "adapters"


def reconfigure_routes(adapters: AdapterControl, openings: Openings) -> Sequence[BaseRouteHandler]:
    @get(
        "/reconfigure/{backend:str}/l2/status",
        operation=Operation("The L2 adapters of one type.", BackendStatus, path=_BACKEND, tag=_TAG),
    )
    async def backend_status(request: Request[Any, Any, Any]) -> dict[str, Any]:
        backend = path_part(request, -3)
        found = [AdapterState.of(each) for each in await sync_to_thread(adapters.states) if each.type == backend]
        return BackendStatus(enabled=bool(found), backend=backend, num_adapters=len(found), adapters=found).model_dump()

    @post(
        "/reconfigure/{backend:str}/l2/{operation:str}",
        status_code=HTTPStatus.ACCEPTED,
        operation=Operation(
            "Change the L2 adapters of one type.",
            AdapterState,
            status=202,
            path={**_BACKEND, "operation": f"One of {', '.join(OPERATIONS)}."},
            body=BackendChange,
            body_may_be_empty=True,
            refusals={404: "there is no such adapter", 409: "it cannot be done as things are"},
            tag=_TAG,
        ),
    )
    async def backend_change(request: Request[Any, Any, Any]) -> dict[str, Any]:
        backend, operation = path_part(request, -3), path_part(request)
        body = await read_body(request, BackendChange, may_be_empty=True)
        if operation not in OPERATIONS:
            raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, f"operation: expected one of {', '.join(OPERATIONS)}")
        given = {name: value for name, value in (body.model_extra or {}).items() if name != "type"}
        if operation == "add":
            opening = openings.within(OPEN_SECONDS)
            return AdapterState.of(await changing(adapters.add, {"type": backend, **given}, opening)).model_dump()
        if given:
            raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, f"no field is called '{next(iter(given)):.100}'")
        name = await _name_of(adapters, backend, body.adapter_index)
        if operation == "remove":
            return AdapterState.of(await changing(adapters.remove, name, REMOVAL_SECONDS, body.force)).model_dump()
        return AdapterState.of(
            await changing(adapters.drain if operation == "drain" else adapters.resume, name)
        ).model_dump()

    return backend_status, backend_change


async def _name_of(adapters: AdapterControl, backend: str, index: int | None) -> str:
    for each in await sync_to_thread(adapters.states):
        is_meant = each.index == index if index is not None else each.seconds_left is None  # it is not being removed
        if each.type == backend and is_meant:
            return each.name
    which = "" if index is None else f" with index {index}"
    raise ProblemError(
        HTTPStatus.NOT_FOUND, f"there is no L2 adapter of type '{backend:.100}'{which}; GET /l2/adapters lists all"
    )
