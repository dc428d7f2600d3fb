"""How much is logged, while the server runs."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from litestar import Request, get, put
from litestar.concurrency import sync_to_thread
from litestar.handlers import BaseRouteHandler

from lmcache_admin.log_levels import LogLevels, UnknownLoggerError
from lmcache_core import Publisher
from lmcache_http.admin_api.server import LoggerLevel, LoggerLevels, SetLevel
from lmcache_http.openapi import Operation
from lmcache_http.problem import ProblemError
from lmcache_http.reading import read_body


def log_level_routes(events: Publisher) -> Sequence[BaseRouteHandler]:
    levels = LogLevels(events)

    @get("/loglevel", operation=Operation("Loggers with a level of their own.", LoggerLevels, tag="logging"))
    async def list_levels() -> dict[str, Any]:
        return LoggerLevels(loggers=await sync_to_thread(levels.own)).model_dump()

    @put(
        "/loglevel",
        operation=Operation(
            "Log more or less, until the server ends.",
            LoggerLevel,
            body=SetLevel,
            refusals={404: "there is no such logger"},
            tag="logging",
        ),
    )
    async def set_level(request: Request[Any, Any, Any]) -> dict[str, Any]:
        wanted = await read_body(request, SetLevel)
        try:
            return (await sync_to_thread(levels.set, wanted.logger, wanted.level)).model_dump()
        except UnknownLoggerError as error:
            raise ProblemError(HTTPStatus.NOT_FOUND, str(error)) from None

    return list_levels, set_level
