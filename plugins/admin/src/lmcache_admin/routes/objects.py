"""What the tiers hold, object by object, and deleting what is named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Final

from litestar import Request, Response, delete, get
from litestar.concurrency import sync_to_thread
from litestar.handlers import BaseRouteHandler

from lmcache_admin.l2_deletions import Deletion, DeletionRefusedError, DeletionState
from lmcache_admin.l2_listing import (
    AdapterFailedError,
    AdapterNotNamedError,
    AdapterSilentError,
    NotOfferedError,
)
from lmcache_admin.object_entries import l1_entry, l2_entry, read_filter, read_keys
from lmcache_admin.parts import AdminParts
from lmcache_core import Capability, NoSuchAdapterError
from lmcache_http.admin_api.objects import (
    CURSOR_CHARS_MAX,
    KEYS_BODY_BYTES_MAX,
    DeleteObjects,
    DeletionAnswer,
    L2KeysQuery,
    ObjectsPage,
    ObjectsQuery,
)
from lmcache_http.openapi import Operation
from lmcache_http.page_token import PageToken, PageTokenError
from lmcache_http.problem import ProblemError
from lmcache_http.reading import read_body, read_query

WAIT_SECONDS: Final = 1.0
"""A deletion that takes longer is answered with 202, and asked for again."""
ADAPTER_REFUSALS: Final = {
    404: "there is no such adapter, or none at all",
    409: "this adapter is deleting already",
    501: "the adapter lacks the capability",
}
_LISTING_REFUSALS: Final = {
    404: ADAPTER_REFUSALS[404],
    501: ADAPTER_REFUSALS[501],
    502: "the adapter failed",
    504: "the adapter did not answer in time",
}
_STATUSES: Final = {
    NoSuchAdapterError: HTTPStatus.NOT_FOUND,
    AdapterNotNamedError: HTTPStatus.UNPROCESSABLE_ENTITY,
    NotOfferedError: HTTPStatus.NOT_IMPLEMENTED,
    DeletionRefusedError: HTTPStatus.CONFLICT,
    AdapterSilentError: HTTPStatus.GATEWAY_TIMEOUT,
    AdapterFailedError: HTTPStatus.BAD_GATEWAY,
    PageTokenError: HTTPStatus.UNPROCESSABLE_ENTITY,
}


def object_routes(cache: AdminParts) -> Sequence[BaseRouteHandler]:
    """`/l2/keys` is what older callers know the listing of backends by."""

    @get(
        "/cache/objects",
        operation=Operation(
            "What a tier holds, object by object.",
            ObjectsPage,
            query=ObjectsQuery,
            refusals=_LISTING_REFUSALS,
            tag="cache",
        ),
    )
    async def list_objects(request: Request[Any, Any, Any]) -> dict[str, Any]:
        return await sync_to_thread(_page, cache, read_query(request, ObjectsQuery))

    @get(
        "/l2/keys",
        operation=Operation(
            "What a backend holds, object by object.",
            ObjectsPage,
            query=L2KeysQuery,
            refusals=_LISTING_REFUSALS,
            tag="cache",
        ),
    )
    async def list_l2_keys(request: Request[Any, Any, Any]) -> dict[str, Any]:
        return await sync_to_thread(_page, cache, read_query(request, L2KeysQuery))

    @delete(
        "/cache/objects",
        status_code=HTTPStatus.OK,
        request_max_body_size=KEYS_BODY_BYTES_MAX,
        operation=Operation(
            "Delete single objects of a tier.",
            DeletionAnswer,
            also={202: DeletionAnswer},
            body=DeleteObjects,
            refusals=ADAPTER_REFUSALS,
            tag="cache",
        ),
    )
    async def delete_objects(request: Request[Any, Any, Any]) -> Response[dict[str, Any]]:
        body = await read_body(request, DeleteObjects)
        keys = await sync_to_thread(read_keys, body.keys)
        if body.tier == "l2":
            with refusals():
                return await ended_or_not(await sync_to_thread(cache.deletions.delete_keys, body.adapter, keys))
        removal = await sync_to_thread(cache.l1.remove, keys, body.force)
        answer = DeletionAnswer(
            status=DeletionState.COMPLETED.value,
            deletion_id=None,
            tier="l1",
            adapter=None,
            deleted=removal.removed,
            missing=removal.missing,
            skipped=removal.skipped,
            failed=0,
            ok=True,
            error=None,
        )
        return Response(answer.model_dump())

    return list_objects, list_l2_keys, delete_objects


@contextmanager
def refusals() -> Iterator[None]:
    """What storage refuses, as problems."""
    try:
        yield
    except tuple(_STATUSES) as error:
        raise ProblemError(_STATUSES[type(error)], str(error)) from None


async def ended_or_not(deletion: Deletion) -> Response[dict[str, Any]]:
    """200 when it ends within a moment, 202 with where to ask again when not."""
    await sync_to_thread(deletion.done.wait, WAIT_SECONDS)
    answer = deletion_answer(deletion)
    if answer.status != DeletionState.RUNNING.value:
        return Response(answer.model_dump())
    return Response(
        answer.model_dump(),
        status_code=HTTPStatus.ACCEPTED,
        headers={"Location": f"/l2/deletions/{deletion.deletion_id}"},
    )


def deletion_answer(deletion: Deletion) -> DeletionAnswer:
    state = deletion.state if deletion.done.is_set() else DeletionState.RUNNING
    return DeletionAnswer(
        status=state.value,
        deletion_id=deletion.deletion_id,
        tier="l2",
        adapter=deletion.adapter,
        deleted=deletion.deleted,
        missing=deletion.missing,
        skipped=deletion.skipped,
        failed=deletion.failed,
        ok=state is DeletionState.COMPLETED and not deletion.failed,
        error=deletion.error or None,
    )


def _page(cache: AdminParts, query: ObjectsQuery) -> dict[str, Any]:
    with refusals():
        return _l1_page(cache, query) if query.tier == "l1" else _l2_page(cache, query)


def _l1_page(cache: AdminParts, query: ObjectsQuery) -> dict[str, Any]:
    listing = f"l1 {cache.view().info.boot_id}"
    first = _place(query.page_token, listing, int, 0)
    page = cache.l1.page(first, query.page_size, read_filter(query.model_name, query.cache_salt))
    return {
        "tier": "l1",
        "adapter": None,
        "shared": False,
        "entries": [l1_entry(found) for found in page.objects],
        "next_page_token": None if page.next_slot is None else PageToken(listing, page.next_slot).text(),
    }


def _l2_page(cache: AdminParts, query: ObjectsQuery) -> dict[str, Any]:
    client = cache.l2.client(query.adapter, Capability.LIST)
    listing = f"l2 {client.name}"
    cursor = _place(query.page_token, listing, str, None)
    page = cache.l2.page(client, cursor, query.page_size, read_filter(query.model_name, query.cache_salt))
    token = None if page.cursor is None else PageToken(listing, page.cursor).text()
    if token is not None and len(token) > CURSOR_CHARS_MAX:
        raise AdapterFailedError(f"adapter '{client.name}' gives a cursor that is too long to be sent back")
    return {
        "tier": "l2",
        "adapter": client.name,
        "shared": Capability.SHARED in client.capabilities,
        "entries": [l2_entry(key, size) for key, size in page.objects.items()],
        "next_page_token": token,
    }


def _place(text: str | None, listing: str, kind: type[Any], beginning: Any) -> Any:
    """Where the page begins.  Raises PageTokenError."""
    if text is None:
        return beginning
    place = PageToken.read(text, listing).place
    if type(place) is not kind or (isinstance(place, int) and place < 0):
        raise PageTokenError("page_token is none of this listing; begin again without one")
    return place
