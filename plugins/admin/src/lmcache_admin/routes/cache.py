"""Dropping what L1 holds."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from litestar import Request, post
from litestar.concurrency import sync_to_thread
from litestar.handlers import BaseRouteHandler

from lmcache_core import CacheControl
from lmcache_http.admin_api.quotas import Clear, Cleared, ClearedTier
from lmcache_http.openapi import Operation
from lmcache_http.reading import read_body


def cache_routes(cache: CacheControl) -> Sequence[BaseRouteHandler]:
    """One route under two names, because servers of two ages know it by one of them each.  The body may be left out."""

    def clear_l1(force: bool) -> Cleared:
        dropped = cache.clear(force)
        return Cleared(cleared=ClearedTier(tier="l1", objects=dropped, objects_left=cache.objects()))

    @post(
        ["/cache/clear", "/clear-cache"],
        status_code=HTTPStatus.OK,
        operation=Operation("Drop what L1 holds.", Cleared, body=Clear, body_may_be_empty=True, tag="cache"),
    )
    async def clear(request: Request[Any, Any, Any]) -> dict[str, Any]:
        body = await read_body(request, Clear, may_be_empty=True)
        return (await sync_to_thread(clear_l1, body.force)).model_dump()

    return (clear,)
