"""Bringing chunks from L2 into L1 before a request asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from litestar import Request, Response, delete, get, post
from litestar.concurrency import sync_to_thread
from litestar.handlers import BaseRouteHandler

from lmcache_admin.chunk_selection import find_chunks
from lmcache_admin.l2_listing import AdapterNotNamedError
from lmcache_admin.parts import AdminParts
from lmcache_admin.pins import PinRefusedError, PinSubject
from lmcache_admin.prefetch_orders import OrderRefusedError, OrderView, PinWish
from lmcache_core import Capability, NoSuchAdapterError
from lmcache_http.admin_api.chunks import (
    CHUNKS_BODY_BYTES_MAX,
    OrderPrefetch,
    PrefetchProgress,
    PrefetchSubmitted,
)
from lmcache_http.openapi import Operation
from lmcache_http.problem import ProblemError
from lmcache_http.reading import path_part, read_body

_PATH = {"request_id": "Of the answer to what ordered it."}
_UNKNOWN = "there is no such prefetch, or it ended long ago"


def prefetch_routes(cache: AdminParts) -> Sequence[BaseRouteHandler]:
    def order(body: OrderPrefetch) -> PrefetchSubmitted:
        chunks = find_chunks(cache, body)
        if not chunks.chunk_hashes:
            return PrefetchSubmitted(request_id=None, chunks=0, status="noop")
        space = chunks.shards[0].spaces[0].space
        subject = PinSubject(space.model_name, space.cache_salt)
        pin = None if body.name is None else PinWish(body.name, subject, body.ttl_seconds)
        try:
            cache.l2.client(None, Capability.NONE)
        except NoSuchAdapterError as error:
            raise ProblemError(HTTPStatus.CONFLICT, str(error)) from None
        except AdapterNotNamedError:
            pass  # every one of them is asked
        try:
            view = cache.orders.submit(chunks, pin)
        except PinRefusedError as error:
            raise ProblemError(HTTPStatus.CONFLICT, str(error)) from None
        except OrderRefusedError as error:
            raise ProblemError(HTTPStatus.TOO_MANY_REQUESTS, str(error)) from None
        return PrefetchSubmitted(request_id=view.request_id, chunks=view.chunks, status="submitted")

    @post(
        "/cache/prefetches",
        status_code=HTTPStatus.ACCEPTED,
        request_max_body_size=CHUNKS_BODY_BYTES_MAX,
        operation=Operation(
            "Bring chunks from L2 into L1.",
            PrefetchSubmitted,
            status=202,
            body=OrderPrefetch,
            refusals={
                409: "the shape of the chunks is not known, there is no L2 adapter, or they cannot be pinned",
                429: "too many prefetches are under way",
            },
            tag="cache",
        ),
    )
    async def order_prefetch(request: Request[Any, Any, Any]) -> Response[dict[str, Any]]:
        answer = await sync_to_thread(order, await read_body(request, OrderPrefetch))
        place = {"Location": f"/cache/prefetches/{answer.request_id}"} if answer.request_id else {}
        return Response(answer.model_dump(), status_code=HTTPStatus.ACCEPTED, headers=place)

    @get(
        "/cache/prefetches/{request_id:str}",
        operation=Operation(
            "How far a prefetch is.", PrefetchProgress, path=_PATH, refusals={404: _UNKNOWN}, tag="cache"
        ),
    )
    async def get_prefetch(request: Request[Any, Any, Any]) -> dict[str, Any]:
        return _progress(await sync_to_thread(cache.orders.find, path_part(request)))

    @delete(
        "/cache/prefetches/{request_id:str}",
        status_code=HTTPStatus.OK,
        operation=Operation(
            "End a prefetch; what has come stays.", PrefetchProgress, path=_PATH, refusals={404: _UNKNOWN}, tag="cache"
        ),
    )
    async def cancel_prefetch(request: Request[Any, Any, Any]) -> dict[str, Any]:
        return _progress(await sync_to_thread(cache.orders.cancel, path_part(request)))

    return order_prefetch, get_prefetch, cancel_prefetch


def _progress(view: OrderView | None) -> dict[str, Any]:
    if view is None:
        raise ProblemError(HTTPStatus.NOT_FOUND, _UNKNOWN)
    return PrefetchProgress(**{**view._asdict(), "status": view.state.value}).model_dump()
