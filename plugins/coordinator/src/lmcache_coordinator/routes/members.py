"""`/fleet`: what our members send, in msgpack, and what peers ask."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from litestar import Request, Response, post
from litestar.handlers import BaseRouteHandler

from lmcache_coordinator.routes.requests import ASKS, ID, MEMBERS, UNKNOWN, Callers, at_once, call
from lmcache_fleet.messages import (
    PAGE_BYTES_MAX,
    Heartbeat,
    Lookup,
    decode_heartbeat,
    decode_lookup,
    decode_page,
    encode,
)
from lmcache_http.openapi import Operation
from lmcache_http.reading import path_part

if TYPE_CHECKING:
    from lmcache_coordinator.coordinator import Coordinator

MSGPACK: Final = "application/msgpack"
SMALL_BYTES: Final = 16 * 1024
"""Of a page that is taken in on the event loop; larger ones are on threads."""
PAGES_AT_ONCE: Final = 2
"""On threads: while they have the interpreter, answers wait."""
SMALL_KEYS: Final = 2048
"""Of a lookup that is answered on the event loop."""


def member_routes(coordinator: Coordinator) -> Sequence[BaseRouteHandler]:
    callers = Callers(coordinator.settings.tls_bind_identity)
    room = asyncio.Semaphore(PAGES_AT_ONCE)

    @post(
        ["/fleet/journal", "/fleet/snapshot"],
        status_code=HTTPStatus.OK,
        request_max_body_size=PAGE_BYTES_MAX,
        operation=Operation(
            "A page of a member's journal, or of a snapshot.",
            refusals=UNKNOWN,
            media_type=MSGPACK,
            body_media_type=MSGPACK,
            body_description="JournalPage or SnapshotPage of lmcache_fleet.messages; answered with a Reply.",
            scopes=MEMBERS,
            direct=True,
            tag="members",
        ),
    )
    async def page(request: Request[Any, Any, Any]) -> Response[bytes]:
        secret, check = callers.secret(request), partial(callers.check, request)
        data = await request.body()
        if len(data) <= SMALL_BYTES:
            decoded = at_once(decode_page, data)
            if coordinator.is_quick(decoded):
                return Response(encode(at_once(coordinator.take, decoded, secret, check)), media_type=MSGPACK)
        async with room:
            reply = await call(coordinator.take_page, data, secret, check)
        return Response(encode(reply), media_type=MSGPACK)

    @post(
        "/fleet/heartbeat/{instance_id:str}",
        status_code=HTTPStatus.OK,
        operation=Operation(
            "A member without news: what is awaited from it, and commands, in msgpack.",
            path=ID,
            refusals=UNKNOWN,
            media_type=MSGPACK,
            body_media_type=MSGPACK,
            body_description="Empty, or a Heartbeat of lmcache_fleet.messages; answered with a Reply.",
            scopes=MEMBERS,
            direct=True,
            tag="members",
        ),
    )
    async def heartbeat(request: Request[Any, Any, Any]) -> Response[bytes]:
        name = path_part(request)
        secret = callers.secret(request, name)
        says: Heartbeat = at_once(decode_heartbeat, await request.body())
        if says.not_deleted or coordinator.journals.is_busy(name):
            reply = await call(coordinator.heartbeat, name, secret, says)
        else:
            reply = at_once(coordinator.heartbeat, name, secret)
        return Response(encode(reply), media_type=MSGPACK)

    @post(
        "/fleet/lookup",
        status_code=HTTPStatus.OK,
        request_max_body_size=PAGE_BYTES_MAX,
        operation=Operation(
            "Who has these keys, and where they are reached: for peers.",
            media_type=MSGPACK,
            body_media_type=MSGPACK,
            body_description="Lookup of lmcache_fleet.messages; answered with a LookupReply.",
            scopes=ASKS,
            direct=True,
            tag="members",
        ),
    )
    async def lookup(request: Request[Any, Any, Any]) -> Response[bytes]:
        asked: Lookup = at_once(decode_lookup, await request.body())
        if asked.keys > SMALL_KEYS:
            reply = await call(coordinator.lookup, asked)
        else:
            reply = at_once(coordinator.lookup, asked)
        return Response(encode(reply), media_type=MSGPACK)

    return page, heartbeat, lookup
