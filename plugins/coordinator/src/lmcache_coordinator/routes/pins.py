"""`/cache/pins`: prompts that are never evicted from shared L2."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any

from litestar import Request, delete, get, post
from litestar.handlers import BaseRouteHandler
from pydantic import ConfigDict, Field

from lmcache_coordinator.routes.directory import BODY_BYTES_MAX, KEYS_MAX
from lmcache_coordinator.routes.requests import StateCalls, call, salt_of
from lmcache_coordinator.routing import PROMPT_TOKENS_MAX
from lmcache_http.models import Answer, QueryParameters, RequestBody
from lmcache_http.openapi import Operation
from lmcache_http.reading import read_body, read_query

if TYPE_CHECKING:
    from lmcache_coordinator.coordinator import Coordinator


class PinQuestion(RequestBody):
    model_config = ConfigDict(json_schema_extra={"examples": [{"model_name": "m", "token_ids": [1, 15, 100]}]})

    model_name: str = Field(min_length=1, max_length=1024)
    world_size: int = Field(1, ge=1, le=255)
    token_ids: list[Annotated[int, Field(ge=0, lt=2**32)]] = Field(max_length=PROMPT_TOKENS_MAX)
    cache_salt: str = Field("", max_length=256)


class PinAnswer(Answer):
    requested: int
    """Chunks of the prompt, in all families that members have."""
    affected: int
    status: str


class PinKey(Answer):
    chunk_hash_hex: str
    model_name: str
    cache_salt: str


class PinEntry(Answer):
    key: PinKey
    pin_count: int


class PinsQuery(QueryParameters):
    offset: int = Field(0, ge=0, lt=2**31, description="How many to leave out.")
    limit: int = Field(1000, ge=1, le=KEYS_MAX, description="How many at most.")


class Pinned(Answer):
    total: int
    pins: list[PinEntry]


def pin_routes(coordinator: Coordinator, states: StateCalls) -> Sequence[BaseRouteHandler]:
    @post(
        "/cache/pins",
        status_code=HTTPStatus.OK,
        request_max_body_size=BODY_BYTES_MAX,
        operation=Operation("Pin the chunks of a prompt.", PinAnswer, body=PinQuestion, tag="pins"),
    )
    async def pin(request: Request[Any, Any, Any]) -> dict[str, Any]:
        return await _change(request, 1)

    @delete(
        "/cache/pins",
        status_code=HTTPStatus.OK,
        request_max_body_size=BODY_BYTES_MAX,
        operation=Operation("Take one pin of each chunk away.", PinAnswer, body=PinQuestion, tag="pins"),
    )
    async def unpin(request: Request[Any, Any, Any]) -> dict[str, Any]:
        return await _change(request, -1)

    async def _change(request: Request[Any, Any, Any], by: int) -> dict[str, Any]:
        asked = await read_body(request, PinQuestion)
        salt = salt_of(asked.cache_salt) if asked.cache_salt else ""
        hashes = await call(coordinator.router.hashes_of_prompt, asked.model_name, salt, asked.token_ids)
        affected = await states.call(coordinator.pins.change, asked.model_name, salt, hashes, by)
        return PinAnswer(requested=len(hashes), affected=affected, status="ok").model_dump()

    @get("/cache/pins", operation=Operation("Every pinned chunk.", Pinned, query=PinsQuery, tag="pins"))
    async def pins(request: Request[Any, Any, Any]) -> dict[str, Any]:
        query = read_query(request, PinsQuery)
        await states.call(coordinator.pins.refresh)
        counts = list((await call(coordinator.pins.counts)).items())
        rows = [
            PinEntry(
                key=PinKey(chunk_hash_hex=chunk.chunk_hash.hex(), model_name=chunk.model, cache_salt=chunk.salt),
                pin_count=count,
            )
            for chunk, count in counts[query.offset : query.offset + query.limit]
        ]
        return Pinned(total=len(counts), pins=rows).model_dump()

    return pin, unpin, pins
