"""Views that plugins derive from the journals: opened, given admitted pages, and contained."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self

from lmcache_client.errors import ConfigError
from lmcache_core import Offer, PluginRoute
from lmcache_fleet.messages import Page
from lmcache_fleet.view import KIND, CoordinatorView, IsThere
from lmcache_http.route_checks import route_check

logger = logging.getLogger(__name__)


class ViewOffers(Protocol):
    """`CommandContext.plugins`"""

    def offers(self, kind: str) -> Sequence[Offer]: ...

    def open(self, kind: str, name: str, settings: Mapping[str, Any]) -> Any: ...


def installed(plugins: ViewOffers) -> Sequence[Offer]:
    """Every view that a plugin offers."""
    try:
        return plugins.offers(KIND)
    except ConfigError:  # the kind is known once a plugin offers something of it
        return ()


class _Named(NamedTuple):
    name: str
    view: CoordinatorView


class Views:
    """Safe from any thread."""

    def __init__(self, views: Mapping[str, CoordinatorView]) -> None:
        self._views = [_Named(name, view) for name, view in views.items()]
        self.types = tuple(sorted({each for view in views.values() for each in view.types if each}))
        self.failures: Counter[str] = Counter()
        """Calls that raised, by the name of the view."""

    @classmethod
    def open(cls, plugins: ViewOffers, settings: Mapping[str, Mapping[str, Any]]) -> Self:
        """Every view that is installed, with its settings by name.  Raises ConfigError."""
        views: dict[str, CoordinatorView] = {}
        for offer in installed(plugins):
            view = plugins.open(KIND, offer.name, settings.get(offer.name, {}))
            if not isinstance(view, CoordinatorView):
                raise ConfigError(
                    f"coordinator view '{offer.name}': the plugin opened a {type(view).__name__} and no CoordinatorView"
                )
            views[offer.name] = view
        return cls(views)

    def begin(self, is_there: IsThere) -> None:
        for name, view in self._views:
            self._call(name, view.begin, is_there)

    def refusal(self, metadata: Mapping[str, Any]) -> str:
        """Of the first one that refuses a server that says this of itself."""
        found = (self._call(name, view.refusal, metadata) for name, view in self._views)
        return next((why for why in found if why), "")

    def figures(self) -> dict[str, Mapping[str, int]]:
        """By the name of the view."""
        found = {name: self._call(name, view.figures) for name, view in self._views}
        return {name: figures for name, figures in found.items() if figures}

    def see(self, page: Page) -> bool:
        """Does one of them take such pages?"""
        return any(page.content in view.types for _, view in self._views)

    def take(self, page: Page, skip: int) -> None:
        for name, view in self._views:
            if page.content in view.types:
                self._call(name, view.take, page, skip)

    def forget(self, instance: str) -> None:
        for name, view in self._views:
            self._call(name, view.forget, instance)

    def routes(self, reserved: Iterable[str]) -> list[PluginRoute]:
        """Raises ConfigError for one that is taken or wrong.  `reserved`: paths of the coordinator."""
        check, routes = route_check({"the coordinator": tuple(reserved)}), list[PluginRoute]()
        for name, view in self._views:
            for route in view.routes():
                made = PluginRoute(name, name, route, f"coordinator view '{name}'")
                if fault := check(made, routes):
                    raise ConfigError(f"coordinator view '{name}': {fault}")
                routes.append(made)
        return routes

    def close(self) -> None:
        for name, view in self._views:
            self._call(name, view.close)

    def _call(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """None where it fails."""
        try:
            return function(*arguments)
        except Exception:  # a plugin's boundary
            self.failures[name] += 1
            logger.exception("coordinator view failed name=%s", name)
            return None
