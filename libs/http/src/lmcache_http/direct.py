"""Routes that are asked thousands of times a second: answered in front of the web framework's layers, which take several times
as long as such an answer.

Handlers, guards, limits and errors are those that the framework has; only the way to the handler is shorter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from litestar import Litestar, Request, Response
from litestar.handlers import HTTPRouteHandler
from litestar.routes import HTTPRoute
from litestar.types import Guard, Receive, Send

from lmcache_http.problem import problem


class Direct:
    """An ASGI application around the framework's.  `Operation.direct` says which routes it answers itself; it passes on
    everything else, also another method of their paths.

    Handlers of such routes take `request` alone and return a Response of bytes.  A path may have one parameter, as its last
    part, which the handler reads with `path_part`."""

    def __init__(self, app: Litestar, guards: Sequence[Guard]) -> None:
        self._app, self._guards = app, guards
        self._handlers: dict[tuple[str, str], HTTPRouteHandler] = {}
        """By method and path; a parameter is left out of the path."""
        for route in app.routes:
            if isinstance(route, HTTPRoute):
                for handler in route.route_handlers:
                    if (about := handler.opt.get("operation")) is not None and about.direct:
                        path = route.path.partition("{")[0]
                        self._handlers.update({(method, path): handler for method in handler.http_methods})

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        handler = self._handlers.get((method, path))
        if handler is None:
            head, slash, part = path.rpartition("/")
            handler = self._handlers.get((method, head + slash)) if part else None
        elif path.endswith("/"):
            handler = None  # the parameter is empty
        if handler is None:
            await self._app(scope, receive, send)
            return
        scope |= {"litestar_app": self._app, "app": self._app, "route_handler": handler}
        request: Request[Any, Any, Any] = Request(scope, receive, send)
        try:
            for guard in self._guards:
                guard(request, handler)
            response: Response[Any] = await handler.fn(request)
            answer = response.to_asgi_response(None, request, status_code=handler.status_code)
        except Exception as error:  # noqa: BLE001 - each becomes an answer, as the framework has it
            answer = problem(request, error).to_asgi_response(None, request)
        await answer(scope, receive, send)
