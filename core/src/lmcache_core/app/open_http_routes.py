"""Opens the HTTP routes of plugins for the service that answers them.  A group that cannot be opened stops the start only if
it was asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from lmcache_core.app.offer_specs import OfferSpec
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.contracts.http_route import PluginRoute, RouteCheck
from lmcache_core.contracts.server_view import ServerView
from lmcache_core.contracts.service import Service
from lmcache_core.contracts.subscriber import Subscriber

_ROUTES_MAX: Final = 100
"""Of one group."""


class RoutesContext:
    """The `HttpContext` of a server."""

    def __init__(
        self,
        server: Callable[[], ServerView],
        subscribers: Mapping[str, Subscriber],
        services: Callable[[], Mapping[str, Service]],
    ) -> None:
        """`server` and `services` are asked when a route is answered: routes are opened before they are there, and `server`
        raises then."""
        self._server, self._subscribers, self._services = server, subscribers, services

    @property
    def server(self) -> ServerView:
        return self._server()

    def subscriber(self, name: str) -> Subscriber | None:
        return self._subscribers.get(name)

    def service(self, name: str) -> Service | None:
        return self._services().get(name)


def open_http_routes(
    specs: Sequence[OfferSpec], plugins: LoadedPlugins, context: RoutesContext, check: RouteCheck
) -> list[PluginRoute]:
    """Those that open.  Raises LMCacheError for a group that is needed and cannot."""
    opened: list[PluginRoute] = []
    # what was asked for comes first: a later one cannot take its paths
    for spec in sorted(specs, key=lambda spec: not spec.needed):
        with spec.dispensable(plugins):
            opened += _group(spec, plugins, context, check, opened)
    return opened


def _group(
    spec: OfferSpec, plugins: LoadedPlugins, context: RoutesContext, check: RouteCheck, others: Sequence[PluginRoute]
) -> list[PluginRoute]:
    plugin = plugins.owner(spec.kind, spec.name)
    given = spec.open(plugins, context)
    if not isinstance(given, list | tuple):
        raise spec.fault(plugins, f" open as {type(given).__name__}, which is not a list of HttpRoute")
    if len(given) > _ROUTES_MAX:
        raise spec.fault(plugins, f" open as {len(given)} routes; at most {_ROUTES_MAX} are allowed")
    group: list[PluginRoute] = []
    for route in given:
        group.append(PluginRoute(plugin.name, spec.name, route, plugin.owner))
        if fault := check(group[-1], [*others, *group[:-1]]):
            raise spec.fault(plugins, f": {fault}")
    return group
