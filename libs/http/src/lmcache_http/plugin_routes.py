"""Routes that plugins bring: checked, called and contained."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from litestar import Request, Response
from litestar.handlers import BaseRouteHandler, delete, get, post, put

from lmcache_core import HttpRefusal, HttpRequest, HttpRoute, PluginRoute
from lmcache_http.openapi import BODY_BYTES_MAX, DescribedRoute, Operation
from lmcache_http.plugin_answer import encoded, fault_of_answer
from lmcache_http.plugin_calls import BusyPluginError, PluginCalls
from lmcache_http.problem import ProblemError
from lmcache_http.reading import path_part, query_values, read_body
from lmcache_http.tokens import Scope

logger = logging.getLogger(__name__)

_METHODS: Final[Mapping[str, Callable[..., Callable[[Any], BaseRouteHandler]]]] = {
    "GET": get,
    "POST": post,
    "PUT": put,
    "DELETE": delete,
}
_KEPT_BACK: Final = ("authorization", "cookie")


class Allowance(NamedTuple):
    """What differs from one route of a plugin to another."""

    scopes: Sequence[Scope] | None = None
    """As in `Operation`."""
    body_bytes_max: int = BODY_BYTES_MAX


_USUAL: Final = Allowance()
Allow = Callable[[HttpRoute], Allowance]


def plugin_routes(
    routes: Sequence[PluginRoute], calls: PluginCalls, allow: Allow = lambda _: _USUAL
) -> Sequence[BaseRouteHandler]:
    """A handler for each."""
    return [_handler(route, calls, allow(route.route)) for route in routes]


def described_plugin_routes(routes: Sequence[PluginRoute], allow: Allow = lambda _: _USUAL) -> list[DescribedRoute]:
    return [
        DescribedRoute(each.route.method, each.route.path, operation(each.route, allow(each.route))) for each in routes
    ]


def _handler(plugin: PluginRoute, calls: PluginCalls, allowed: Allowance) -> BaseRouteHandler:
    route = plugin.route
    names = {part[1:-1]: index for index, part in enumerate(route.path.split("/")) if part.startswith("{")}
    # names of parameters are the plugin's own: two plugins may have different ones at one place
    path = "/".join(
        f"{{part_{i}:str}}" if part.startswith("{") else part for i, part in enumerate(route.path.split("/"))
    )

    async def answer(request: Request[Any, Any, Any]) -> Response[Any]:
        asked = HttpRequest(
            path={name: path_part(request, index) for name, index in names.items()},
            query=_query(request, route),
            headers={name: value for name, value in request.headers.items() if name not in _KEPT_BACK},
            body=await _body(request, route),
        )
        try:
            response: Response[Any] = await calls.call(plugin.plugin, _answer, plugin, asked)
        except BusyPluginError as error:
            raise ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from None
        except TimeoutError:
            logger.error(
                "route of a plugin does not answer plugin=%s method=%s path=%s", plugin.plugin, route.method, route.path
            )
            raise ProblemError(
                HTTPStatus.GATEWAY_TIMEOUT,
                f"plugin '{plugin.plugin}' did not answer in time; the server's log names the route",
            ) from None
        return response

    return _METHODS[route.method](
        path,
        status_code=HTTPStatus.OK,
        request_max_body_size=allowed.body_bytes_max,
        operation=operation(route, allowed),
    )(answer)


def operation(route: HttpRoute, allowed: Allowance = _USUAL) -> Operation:
    """What its declaration says, as for core's routes."""
    return Operation(
        route.summary,
        route.answers,
        query=route.query or None,
        body=route.body,
        refusals={504: "the plugin does not answer", **route.refusals},
        media_type=route.media_type,
        open=route.open,
        scopes=allowed.scopes,
        tag="plugins",
    )


def _query(request: Request[Any, Any, Any], route: HttpRoute) -> Mapping[str, str]:
    values = query_values(request.scope["query_string"])
    if unknown := next((name for name in values if name not in route.query), None):
        known = ", ".join(route.query)
        raise ProblemError(
            HTTPStatus.UNPROCESSABLE_ENTITY, f"query: nothing is called '{unknown}'; known: {known or 'nothing'}"
        )
    return values


async def _body(request: Request[Any, Any, Any], route: HttpRoute) -> bytes:
    if route.body is None:
        return b""
    await read_body(request, route.body)
    return await request.body()


def _answer(plugin: PluginRoute, asked: HttpRequest) -> Response[Any]:
    """On a thread.  What the plugin raises or answers wrongly is logged under its name, and not shown."""
    route = plugin.route
    try:
        answer = route.answer(asked)
        if wrong := fault_of_answer(answer):
            raise TypeError(wrong)
        kind = answer.media_type
        if kind.startswith("text/") and "charset" not in kind:
            kind += "; charset=utf-8"
        headers = {**answer.headers, "content-type": kind}  # by hand: litestar would add a charset of its own
        return Response(encoded(answer.body), status_code=answer.status, headers=headers)
    except HttpRefusal as refusal:
        if refusal.status in route.refusals:
            raise ProblemError(HTTPStatus(refusal.status), str(refusal)) from None
        fault: BaseException = ValueError(f"it refused with {refusal.status}, which is none of its refusals")
    except BaseException as error:  # noqa: BLE001 - a plugin's boundary: it can end neither the server nor its thread
        fault = error
    logger.error(
        "route of a plugin failed plugin=%s offer=%s method=%s path=%s",
        plugin.plugin,
        plugin.offer,
        route.method,
        route.path,
        exc_info=fault,
    )
    raise ProblemError(
        HTTPStatus.INTERNAL_SERVER_ERROR, f"plugin '{plugin.plugin}' failed to answer; the server's log says why"
    )
