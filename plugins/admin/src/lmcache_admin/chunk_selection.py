"""Chunks as callers name them, found."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from lmcache_admin.object_entries import read_salt
from lmcache_admin.parts import AdminParts
from lmcache_core import AddressedChunks, AddressError, ChunkAddress, ObjectLayout, UnknownShapeError
from lmcache_http.admin_api.chunks import ChunkLayout, ChunkSelection
from lmcache_http.problem import ProblemError

OBJECTS_MAX: Final = 262_144
"""Shards of chunks in one request."""


def find_chunks(cache: AdminParts, selection: ChunkSelection, objects_max: int = OBJECTS_MAX) -> AddressedChunks:
    """Raises ProblemError: 409 where the shape of the chunks is not known, 422 for what is none."""
    address = ChunkAddress(
        selection.model_name,
        selection.world_size,
        read_salt(selection.cache_salt),
        selection.token_ids,
        None if selection.chunk_hashes is None else [bytes.fromhex(each) for each in selection.chunk_hashes],
        None if selection.layout is None else _layout(selection.layout, cache.view().info.chunk_tokens),
    )
    try:
        chunks = cache.control.resolve(address)
    except UnknownShapeError as error:
        raise ProblemError(HTTPStatus.CONFLICT, str(error)) from None
    except AddressError as error:
        raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from None
    if len(chunks.chunk_hashes) * len(chunks.shards) > objects_max:
        raise ProblemError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            f"{len(chunks.chunk_hashes)} chunks of {len(chunks.shards)} shards are more than the {objects_max} objects that "
            "one request may name; name fewer chunks",
        )
    return chunks


def _layout(layout: ChunkLayout, chunk_tokens: int) -> ObjectLayout:
    try:
        return ObjectLayout(
            layout.kv_axis,
            layout.layers,
            chunk_tokens,
            layout.hidden,
            layout.dtype,
            layout.quantization,
            layout.block_slots,
            layout.order,
        )
    except ValueError as error:
        raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, f"field 'layout': {error}") from None
