"""What every thread is doing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from litestar import get
from litestar.concurrency import sync_to_thread
from litestar.handlers import BaseRouteHandler

from lmcache_core import ThreadRow as Thread
from lmcache_http.admin_api.server import ThreadRow, Threads
from lmcache_http.openapi import Operation


def threads_routes(threads: Callable[[], Sequence[Thread]]) -> Sequence[BaseRouteHandler]:
    @get("/threads", operation=Operation("Every thread, what it has used and where it is.", Threads))
    async def list_threads() -> dict[str, Any]:
        return Threads(threads=[ThreadRow.of(row) for row in await sync_to_thread(threads)]).model_dump()

    return (list_threads,)
