"""What every thread is doing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from litestar import get
from litestar.concurrency import sync_to_thread
from litestar.handlers import BaseRouteHandler

from lmcache_admin.thread_list import thread_list
from lmcache_core import ServerView
from lmcache_http.admin_api.server import Threads
from lmcache_http.openapi import Operation


def threads_routes(view: Callable[[], ServerView]) -> Sequence[BaseRouteHandler]:
    def threads() -> Threads:
        return Threads(threads=thread_list(view().status()["threads"]))

    @get("/threads", operation=Operation("Every thread, what it has used and where it is.", Threads))
    async def list_threads() -> dict[str, Any]:
        return (await sync_to_thread(threads)).model_dump()

    return (list_threads,)
