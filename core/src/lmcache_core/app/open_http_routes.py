"""Opens the HTTP routes of plugins and checks them against the contract, core's routes, and each other's.  A group that
cannot be opened stops the start only if it was asked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from pydantic import BaseModel

from lmcache_client.errors import LMCacheError
from lmcache_core.app.offer_specs import OfferSpec
from lmcache_core.app.plugins.discovery import Candidate
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.contracts.http_route import HttpRoute, PluginRoute, paths_overlap
from lmcache_core.contracts.server_view import ServerView
from lmcache_core.contracts.subscriber import Subscriber
from lmcache_core.model.errors import PluginContractError

_METHODS: Final = ("GET", "POST", "PUT", "DELETE")
_PATH: Final = re.compile(r"(/([A-Za-z0-9._~-]+|{[a-z_][a-z0-9_]*}))+")
_LINE_CHARACTERS: Final = 200
_ROUTES_MAX: Final = 100
"""Of one group."""


class RoutesContext:
    """The `HttpContext` of a server."""

    def __init__(self, server: Callable[[], ServerView], subscribers: Mapping[str, Subscriber]) -> None:
        """`server` is asked when a route is answered: routes are opened before the server is made."""
        self._server, self._subscribers = server, subscribers
        self._is_opening = False

    @property
    def server(self) -> ServerView:
        if self._is_opening:
            raise RuntimeError(
                "context.server was asked while routes are opened, when there is no server yet; ask it in the answer"
            )
        return self._server()

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Within it, routes are opened."""
        self._is_opening = True
        try:
            yield
        finally:
            self._is_opening = False

    def subscriber(self, name: str) -> Subscriber | None:
        return self._subscribers.get(name)


def open_http_routes(
    specs: Sequence[OfferSpec], plugins: LoadedPlugins, context: RoutesContext, reserved: Mapping[str, Sequence[str]]
) -> list[PluginRoute]:
    """Those that can be had.  `reserved`: paths that no plugin may have, by their owner.  Raises
    LMCacheError for a group that is needed and cannot."""
    opened: list[PluginRoute] = []
    # what was asked for comes first: a later one cannot take its paths
    for spec in sorted(specs, key=lambda spec: not spec.needed):
        try:
            opened += _group(spec, plugins, context, opened, reserved)
        except LMCacheError as error:
            if spec.needed:
                raise
            plugins.set_aside(spec.kind, spec.name, error)
    return opened


def _group(
    spec: OfferSpec,
    plugins: LoadedPlugins,
    context: RoutesContext,
    others: Sequence[PluginRoute],
    reserved: Mapping[str, Sequence[str]],
) -> list[PluginRoute]:
    plugin = plugins.owner(spec.kind, spec.name)
    subject = f"{spec.kind.label} '{spec.name}' ({plugin.owner})"
    with context.opening():
        given = spec.open(plugins, context)
    if not isinstance(given, list | tuple):
        raise PluginContractError(
            plugin.name, f"{subject} open as {type(given).__name__}, which is not a list of HttpRoute"
        )
    if len(given) > _ROUTES_MAX:
        raise PluginContractError(
            plugin.name, f"{subject} open as {len(given)} routes; at most {_ROUTES_MAX} are allowed"
        )
    group: list[PluginRoute] = []
    for route in given:
        if fault := fault_of_route(route):
            raise PluginContractError(plugin.name, f"{subject}: {fault}")
        if rival := _rival(route, [*others, *group], plugins, reserved):
            raise PluginContractError(
                plugin.name, f"{subject}: {route.method} {route.path} is answered by {rival}, too; choose another path"
            )
        group.append(PluginRoute(plugin.name, spec.name, route))
    return group


def fault_of_route(route: Any) -> str | None:
    """What is wrong with a declaration, in words; None for a right one."""
    if not isinstance(route, HttpRoute):
        return f"it has {type(route).__name__} where HttpRoute belongs"
    where = f"route {route.method!r} {route.path!r}"
    fault = _fault_of_address(route) or _fault_of_values(route)
    return f"{where}: {fault}" if fault else None


def _fault_of_address(route: Any) -> str | None:
    if route.method not in _METHODS:
        return f"the method is none of {', '.join(_METHODS)}"
    if not (isinstance(route.path, str) and _PATH.fullmatch(route.path)):
        return "a path is such as /acme/things/{name}: absolute, without a slash at its end"
    names = re.findall(r"{(\w+)}", route.path)
    if len(set(names)) < len(names):
        return "two parts of the path have one name"
    return None


def _fault_of_values(route: Any) -> str | None:
    if not callable(route.answer):
        return "answer is not a function"
    if not _is_line(route.summary):
        return f"summary is not a line of text of at most {_LINE_CHARACTERS} characters"
    if not isinstance(route.query, Mapping) or not all(_is_line(text) for each in route.query.items() for text in each):
        return "query is not a mapping of names to lines of text"
    for part, model in (("body", route.body), ("answers", route.answers)):
        if model is not None and not (isinstance(model, type) and issubclass(model, BaseModel)):
            return f"{part} is {model!r}, which is not a pydantic model"
    if route.body is not None and route.method in ("GET", "DELETE"):
        return f"a {route.method} has no body"
    if not isinstance(route.refusals, Mapping) or not all(
        isinstance(status, int) and 400 <= status <= 599 and _is_line(when) for status, when in route.refusals.items()
    ):
        return "refusals is not a mapping of statuses from 400 to 599 to lines of text"
    if not _is_line(route.media_type) or "/" not in route.media_type:
        return f"media_type is {route.media_type!r}, not one such as text/plain"
    if route.open and route.method != "GET":
        return "only a GET may be open: whatever changes something needs a token"
    return None


def _is_line(text: object) -> bool:
    return isinstance(text, str) and text.isprintable() and 0 < len(text.strip()) <= _LINE_CHARACTERS


def _rival(
    route: HttpRoute, others: Sequence[PluginRoute], plugins: LoadedPlugins, reserved: Mapping[str, Sequence[str]]
) -> str | None:
    """The owner of the path; the owner of a reserved path has every method of it."""
    for owner, paths in reserved.items():
        if any(paths_overlap(route.path, path) for path in paths):
            return owner
    for other in others:
        if other.route.method == route.method and paths_overlap(route.path, other.route.path):
            return f"HTTP routes '{other.offer}' ({_named(other.plugin, plugins).owner})"
    return None


def _named(plugin: str, plugins: LoadedPlugins) -> Candidate:
    return next(row.candidate for row in plugins.rows() if row.candidate.name == plugin)
