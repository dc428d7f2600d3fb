"""Which server is this?"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

from litestar import get
from litestar.handlers import BaseRouteHandler

from lmcache_admin.parts import AdminParts
from lmcache_core import CONTRACT_VERSION
from lmcache_http.admin_api.server import Version
from lmcache_http.openapi import Operation


def version_routes(parts: AdminParts) -> Sequence[BaseRouteHandler]:
    @get(["/version", "/lmc_version"], operation=Operation("The server's version, contract and Python.", Version))
    async def which() -> dict[str, Any]:
        info = parts.view().info
        answer = Version(
            version=info.version,
            contract=CONTRACT_VERSION,
            python=platform.python_version(),
            native=parts.control.native,
            instance_id=info.instance_id,
        )
        return answer.model_dump()

    return (which,)
