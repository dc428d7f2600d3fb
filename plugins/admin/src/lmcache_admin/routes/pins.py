"""Keeping chunks in L1."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from litestar import Request, get, post
from litestar.concurrency import sync_to_thread
from litestar.handlers import BaseRouteHandler

from lmcache_admin.chunk_selection import find_chunks
from lmcache_admin.parts import AdminParts
from lmcache_admin.pins import PinRefusedError, PinSubject, PinView
from lmcache_core import parse_model_name, salt_text
from lmcache_http.admin_api.chunks import (
    CHUNKS_BODY_BYTES_MAX,
    ChunksPinned,
    PinAnswer,
    PinChunks,
    PinsAnswer,
    Unpin,
)
from lmcache_http.openapi import Operation
from lmcache_http.problem import ProblemError
from lmcache_http.reading import read_body


def pin_routes(cache: AdminParts) -> Sequence[BaseRouteHandler]:
    def pin_chunks(body: PinChunks) -> ChunksPinned:
        chunks = find_chunks(cache, body)
        if not chunks.chunk_hashes:
            raise ProblemError(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                f"what is named is less than one chunk, which has {cache.view().info.chunk_tokens} tokens; name more",
            )
        space = chunks.shards[0].spaces[0].space
        subject = PinSubject(space.model_name, space.cache_salt)
        try:
            pinned = cache.pins.pin(body.name, subject, body.ttl_seconds, chunks)
        except PinRefusedError as error:
            raise ProblemError(HTTPStatus.CONFLICT, str(error)) from None
        if not pinned.objects:
            raise ProblemError(
                HTTPStatus.NOT_FOUND,
                f"none of the {len(chunks.chunk_hashes)} chunks is in L1; POST /cache/prefetches with 'pin' brings them",
            )
        return ChunksPinned(
            name=body.name, chunks=pinned.chunks, total_chunks=len(chunks.chunk_hashes), objects=pinned.objects
        )

    def everything() -> PinsAnswer:
        views, totals = cache.pins.everything(), cache.pins.totals()
        return PinsAnswer(
            pins=[_answer(view) for view in views],
            objects=totals.objects,
            pinned_bytes=totals.size_bytes,
            pinned_bytes_max=totals.max_bytes,
        )

    @post(
        "/cache/pin",
        status_code=HTTPStatus.OK,
        request_max_body_size=CHUNKS_BODY_BYTES_MAX,
        operation=Operation(
            "Keep chunks in L1.",
            ChunksPinned,
            body=PinChunks,
            refusals={
                404: "none of the chunks is in L1",
                409: "the shape of the chunks is not known, the name is another model's, or it is more than may be pinned",
            },
            tag="cache",
        ),
    )
    async def pin(request: Request[Any, Any, Any]) -> dict[str, Any]:
        return (await sync_to_thread(pin_chunks, await read_body(request, PinChunks))).model_dump()

    @post(
        "/cache/unpin",
        status_code=HTTPStatus.OK,
        operation=Operation(
            "Let a pin go.", PinAnswer, body=Unpin, refusals={404: "there is no such pin"}, tag="cache"
        ),
    )
    async def unpin(request: Request[Any, Any, Any]) -> dict[str, Any]:
        name = (await read_body(request, Unpin)).name
        view = await sync_to_thread(cache.pins.unpin, name)
        if view is None:
            raise ProblemError(
                HTTPStatus.NOT_FOUND, f"there is no pin '{name}'; GET /cache/pins lists those that there are"
            )
        return _answer(view).model_dump()

    @get("/cache/pins", operation=Operation("What is pinned.", PinsAnswer, tag="cache"))
    async def list_pins() -> dict[str, Any]:
        return (await sync_to_thread(everything)).model_dump()

    return pin, unpin, list_pins


def _answer(view: PinView) -> PinAnswer:
    model = parse_model_name(view.subject.model_name)
    return PinAnswer(
        name=view.name,
        model_name=model.served,
        identity=model.identity,
        variant=model.variant,
        cache_salt=salt_text(view.subject.cache_salt),
        objects=view.objects,
        bytes=view.size_bytes,
        expires_in_seconds=view.expires_in_seconds,
    )
