"""The server's settings, without secrets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from litestar import get
from litestar.concurrency import sync_to_thread
from litestar.handlers import BaseRouteHandler

from lmcache_core import AdapterControl, SettingControl
from lmcache_http.admin_api.server import Configuration, ConfiguredAdapter, ConfiguredAdapters, Setting
from lmcache_http.openapi import Operation


def config_routes(given: SettingControl, in_use: AdapterControl) -> Sequence[BaseRouteHandler]:
    @get(
        "/config",
        operation=Operation(
            "Every setting with its value and where that comes from.", Configuration, tag="configuration"
        ),
    )
    async def settings() -> dict[str, Any]:
        rows = await sync_to_thread(given.shown)
        return Configuration(settings=[Setting.of(row) for row in rows]).model_dump()

    @get(
        "/config/adapters",
        operation=Operation("The storage backends in use.", ConfiguredAdapters, tag="configuration"),
    )
    async def adapters() -> dict[str, Any]:
        rows = [
            ConfiguredAdapter(index=each.index, name=each.name, type_name=each.type, settings=dict(each.settings))
            for each in await sync_to_thread(in_use.states)
        ]
        return ConfiguredAdapters(adapters=rows).model_dump()

    return settings, adapters
