"""Settings that can be changed while the server runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from http import HTTPStatus
from typing import Any, Final

from litestar import Request, get, patch, put
from litestar.concurrency import sync_to_thread
from litestar.handlers import BaseRouteHandler

from lmcache_admin.openings import Openings
from lmcache_admin.routes.adapters import changing
from lmcache_core import ConfigError, NotNowError, SettingControl
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
    def change(values: Mapping[str, Any]) -> Sequence[object]:
        _check_names(values, settings)
        return settings.change(values, openings.within(OPEN_SECONDS))

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
        return _changed(await changing(change, values))

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
        return _changed(await changing(change, {path_part(request): value}))

    return list_settings, change_settings, set_setting


def _check_names(values: Iterable[str], settings: SettingControl) -> None:
    """Raises NotNowError for a setting that needs a restart, ConfigError for an unknown name."""
    changeable = settings.running()
    for name in values:
        if name in changeable:
            continue
        known = [row.name for row in settings.shown()]
        if name in known:
            raise NotNowError(
                f"'{name}' cannot be changed while the server runs: it needs a restart; GET /settings lists those that can"
            )
        guesses = get_close_matches(name, known, n=1)
        remedy = f"did you mean '{guesses[0]}'?" if guesses else "GET /settings lists those that can be changed"
        raise ConfigError(f"no setting is called '{name:.100}'; {remedy}")


def _changed(rows: Sequence[object]) -> dict[str, Any]:
    return ChangedSettings(changed=[ChangedSetting.of(row) for row in rows]).model_dump()
