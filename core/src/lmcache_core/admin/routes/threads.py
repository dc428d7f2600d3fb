"""What every thread is doing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from litestar import get
from litestar.concurrency import sync_to_thread
from litestar.handlers import BaseRouteHandler

from lmcache_core.admin.operation import Operation
from lmcache_core.admin.schemas_server import ThreadRow, Threads


def threads_routes(threads: Callable[[], Sequence[ThreadRow]]) -> Sequence[BaseRouteHandler]:
    @get("/threads", operation=Operation("Every thread, what it has used and where it is.", Threads))
    async def list_threads() -> dict[str, Any]:
        return Threads(threads=list(await sync_to_thread(threads))).model_dump()

    return (list_threads,)
