"""What the server was told, without secrets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from litestar import get
from litestar.concurrency import sync_to_thread
from litestar.handlers import BaseRouteHandler

from lmcache_core.admin.operation import Operation
from lmcache_core.admin.ports import ConfigPort
from lmcache_core.admin.schemas_server import Configuration, ConfiguredAdapters


def config_routes(config: ConfigPort) -> Sequence[BaseRouteHandler]:
    @get(
        "/config",
        operation=Operation(
            "Every setting with its value and where that comes from.", Configuration, tag="configuration"
        ),
    )
    async def settings() -> dict[str, Any]:
        return Configuration(settings=list(await sync_to_thread(config.settings))).model_dump()

    @get(
        "/config/adapters",
        operation=Operation("The storage backends in use.", ConfiguredAdapters, tag="configuration"),
    )
    async def adapters() -> dict[str, Any]:
        return ConfiguredAdapters(adapters=list(await sync_to_thread(config.adapters))).model_dump()

    return settings, adapters
