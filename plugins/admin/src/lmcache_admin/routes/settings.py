"""Settings that can be changed while the server runs."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

from litestar import Request, get, patch, put
from litestar.concurrency import sync_to_thread
from litestar.handlers import BaseRouteHandler

from lmcache_admin.openings import Openings
from lmcache_admin.routes.adapters import changing
from lmcache_core import SettingControl
from lmcache_http.admin_api.changes import (
    ChangeableSettings,
    ChangedSetting,
    ChangedSettings,
    ChangeSettings,
    SetSetting,
)
from lmcache_http.openapi import Operation
from lmcache_http.problem import ProblemError
from lmcache_http.reading import path_part, read_body

_REFUSALS: Final = {409: "a setting needs a restart, a policy cannot be opened, or quotas forbid it"}
_TAG: Final = "settings"
OPEN_SECONDS: Final = 10.0
"""How long a policy may take to be opened."""


def setting_routes(settings: SettingControl, openings: Openings) -> Sequence[BaseRouteHandler]:
    @get(
        "/settings",
        operation=Operation("The settings that can be changed without a restart.", ChangeableSettings, tag=_TAG),
    )
    async def list_settings() -> dict[str, Any]:
        return ChangeableSettings(settings=dict(await sync_to_thread(settings.running))).model_dump()

    @patch(
        "/settings",
        operation=Operation(
            "Change settings, all or none.", ChangedSettings, body=ChangeSettings, refusals=_REFUSALS, tag=_TAG
        ),
    )
    async def change_settings(request: Request[Any, Any, Any]) -> dict[str, Any]:
        values = (await read_body(request, ChangeSettings)).model_dump()
        if not values:
            raise ProblemError(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "the body names no setting; GET /settings lists those that can be changed",
            )
        return _changed(await changing(settings.change, values, openings.within(OPEN_SECONDS)))

    @put(
        "/settings/{name:str}",
        operation=Operation(
            "Change one setting.",
            ChangedSettings,
            path={"name": "Name of the setting, as GET /settings lists it."},
            body=SetSetting,
            refusals=_REFUSALS,
            tag=_TAG,
        ),
    )
    async def set_setting(request: Request[Any, Any, Any]) -> dict[str, Any]:
        value = (await read_body(request, SetSetting)).value
        return _changed(await changing(settings.change, {path_part(request): value}, openings.within(OPEN_SECONDS)))

    return list_settings, change_settings, set_setting


def _changed(rows: Sequence[object]) -> dict[str, Any]:
    return ChangedSettings(changed=[ChangedSetting.of(row) for row in rows]).model_dump()
