"""L2 adapters come and go while the server runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, Final, ParamSpec, TypeVar

from litestar import Request, delete, get, post
from litestar.concurrency import sync_to_thread
from litestar.handlers import BaseRouteHandler

from lmcache_admin.openings import Openings
from lmcache_core import AdapterControl, ConfigError, NoSuchAdapterError, NotNowError
from lmcache_http.admin_api.changes import AdapterState, AdapterStates, AddAdapter, RemovalQuery
from lmcache_http.openapi import Operation
from lmcache_http.problem import ProblemError
from lmcache_http.reading import path_part, read_body, read_query

_NAME: Final = {"name": "Name of the adapter, as GET /l2/adapters lists it."}
_UNKNOWN: Final = {404: "no adapter has this name"}
_TAG: Final = "adapters"
OPEN_SECONDS: Final = 30.0
"""How long an adapter may take to be opened."""

Asked = ParamSpec("Asked")
Given = TypeVar("Given")


def adapter_routes(adapters: AdapterControl, openings: Openings) -> Sequence[BaseRouteHandler]:
    """Whatever may take long is begun, answered with 202, and asked about with GET /l2/adapters/{name}."""

    @get("/l2/adapters", operation=Operation("All L2 adapters, and what each is doing.", AdapterStates, tag=_TAG))
    async def list_adapters() -> dict[str, Any]:
        return AdapterStates(
            adapters=[AdapterState.of(each) for each in await sync_to_thread(adapters.states)]
        ).model_dump()

    @get(
        "/l2/adapters/{name:str}",
        operation=Operation("One L2 adapter.", AdapterState, path=_NAME, refusals=_UNKNOWN, tag=_TAG),
    )
    async def get_adapter(request: Request[Any, Any, Any]) -> dict[str, Any]:
        return AdapterState.of(await changing(adapters.state, path_part(request))).model_dump()

    @post(
        "/l2/adapters",
        status_code=HTTPStatus.CREATED,
        operation=Operation(
            "Open an L2 adapter and use it.",
            AdapterState,
            status=201,
            body=AddAdapter,
            refusals={409: "it cannot be opened, or there are too many"},
            tag=_TAG,
        ),
    )
    async def add_adapter(request: Request[Any, Any, Any]) -> dict[str, Any]:
        body = await read_body(request, AddAdapter)
        return AdapterState.of(
            await changing(adapters.add, body.model_dump(), openings.within(OPEN_SECONDS))
        ).model_dump()

    @post(
        "/l2/adapters/{name:str}/drain",
        status_code=HTTPStatus.ACCEPTED,
        operation=Operation(
            "Store nothing new in an L2 adapter; what waits for it is stored, and it is loaded from.",
            AdapterState,
            status=202,
            path=_NAME,
            refusals={**_UNKNOWN, 409: "it is being removed"},
            tag=_TAG,
        ),
    )
    async def drain_adapter(request: Request[Any, Any, Any]) -> dict[str, Any]:
        return AdapterState.of(await changing(adapters.drain, path_part(request, -2))).model_dump()

    @post(
        "/l2/adapters/{name:str}/resume",
        status_code=HTTPStatus.OK,
        operation=Operation(
            "Take a drain back.",
            AdapterState,
            path=_NAME,
            refusals={**_UNKNOWN, 409: "it is being removed"},
            tag=_TAG,
        ),
    )
    async def resume_adapter(request: Request[Any, Any, Any]) -> dict[str, Any]:
        return AdapterState.of(await changing(adapters.resume, path_part(request, -2))).model_dump()

    @delete(
        "/l2/adapters/{name:str}",
        status_code=HTTPStatus.ACCEPTED,
        operation=Operation(
            "Drain an L2 adapter and take it out of the server.  What its backend holds stays there.",
            AdapterState,
            status=202,
            path=_NAME,
            query=RemovalQuery,
            refusals={**_UNKNOWN, 409: "the server is stopping"},
            tag=_TAG,
        ),
    )
    async def remove_adapter(request: Request[Any, Any, Any]) -> dict[str, Any]:
        query = read_query(request, RemovalQuery)
        name = path_part(request)
        return AdapterState.of(await changing(adapters.remove, name, query.deadline_seconds, query.force)).model_dump()

    return list_adapters, get_adapter, add_adapter, drain_adapter, resume_adapter, remove_adapter


async def changing(call: Callable[Asked, Given], *arguments: Asked.args, **named: Asked.kwargs) -> Given:
    """Call a port on a thread.  What it refuses is a ProblemError."""
    try:
        return await sync_to_thread(call, *arguments, **named)
    except NoSuchAdapterError as error:
        raise ProblemError(HTTPStatus.NOT_FOUND, str(error)) from None
    except NotNowError as error:
        raise ProblemError(HTTPStatus.CONFLICT, str(error)) from None
    except ConfigError as error:
        raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from None
