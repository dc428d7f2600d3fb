"""Which plugins are there, and what is wrong with any of them?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from litestar import get
from litestar.concurrency import sync_to_thread
from litestar.handlers import BaseRouteHandler

from lmcache_http.admin_api.server import PluginAnswer, Plugins
from lmcache_http.openapi import Operation


def plugins_routes(plugins: Callable[[], Sequence[Mapping[str, Any]]]) -> Sequence[BaseRouteHandler]:
    @get("/plugins", operation=Operation("Every plugin, with its offers, its hooks and its faults.", Plugins))
    async def list_plugins() -> dict[str, Any]:
        return Plugins(plugins=[PluginAnswer(**row) for row in await sync_to_thread(plugins)]).model_dump()

    return (list_plugins,)
