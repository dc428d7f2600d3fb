"""Which server is this?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from litestar import get
from litestar.handlers import BaseRouteHandler

from lmcache_http.admin_api.server import Version
from lmcache_http.openapi import Operation


def version_routes(version: Callable[[], Version]) -> Sequence[BaseRouteHandler]:
    @get(["/version", "/lmc_version"], operation=Operation("Versions of the server and of what it stands on.", Version))
    async def which() -> dict[str, Any]:
        return version().model_dump()

    return (which,)
