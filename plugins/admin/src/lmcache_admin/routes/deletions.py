"""Deleting from a backend by model, tenant or key, and how far that is."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from litestar import Request, Response, delete, get
from litestar.concurrency import sync_to_thread
from litestar.handlers import BaseRouteHandler

from lmcache_admin.object_entries import read_filter, read_keys
from lmcache_admin.parts import AdminParts
from lmcache_admin.routes.objects import ADAPTER_REFUSALS, deletion_answer, ended_or_not, refusals
from lmcache_http.admin_api.objects import KEYS_BODY_BYTES_MAX, DeleteL2Keys, DeleteL2Query, DeletionAnswer
from lmcache_http.openapi import Operation
from lmcache_http.problem import ProblemError
from lmcache_http.reading import path_part, read_body, read_query


def deletion_routes(cache: AdminParts) -> Sequence[BaseRouteHandler]:
    @delete(
        "/l2",
        status_code=HTTPStatus.OK,
        request_max_body_size=KEYS_BODY_BYTES_MAX,
        operation=Operation(
            "Delete from a backend: by model, by tenant, by key, or everything.",
            DeletionAnswer,
            also={202: DeletionAnswer},
            query=DeleteL2Query,
            body=DeleteL2Keys,
            body_may_be_empty=True,
            refusals=ADAPTER_REFUSALS,
            tag="cache",
        ),
    )
    async def delete_l2(request: Request[Any, Any, Any]) -> Response[dict[str, Any]]:
        query = read_query(request, DeleteL2Query)
        filtered = query.model_name is not None or query.cache_salt is not None
        by_key = bool(await request.body())
        if filtered + query.everything + by_key != 1:
            raise ProblemError(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "say what to delete, in one way: a filter (model_name, cache_salt), a body with 'keys', or everything=true",
            )
        with refusals():
            if by_key:
                keys = await sync_to_thread(read_keys, (await read_body(request, DeleteL2Keys)).keys)
                deletion = await sync_to_thread(cache.deletions.delete_keys, query.adapter, keys)
            else:
                only = read_filter(query.model_name, query.cache_salt)
                deletion = await sync_to_thread(cache.deletions.delete_matching, query.adapter, only)
        return await ended_or_not(deletion)

    @get(
        "/l2/deletions/{deletion_id:str}",
        operation=Operation(
            "How far a deletion is.",
            DeletionAnswer,
            path={"deletion_id": "Of the answer to what began it."},
            refusals={404: "there is no such deletion, or it ended long ago"},
            tag="cache",
        ),
    )
    async def get_deletion(request: Request[Any, Any, Any]) -> dict[str, Any]:
        deletion = await sync_to_thread(cache.deletions.find, path_part(request))
        if deletion is None:
            raise ProblemError(HTTPStatus.NOT_FOUND, "there is no such deletion, or it ended long ago")
        return deletion_answer(deletion).model_dump()

    return delete_l2, get_deletion
