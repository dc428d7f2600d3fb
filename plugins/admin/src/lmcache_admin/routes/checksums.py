"""What the bytes of chunks in L1 come to."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

from litestar import Request, post
from litestar.concurrency import sync_to_thread
from litestar.handlers import BaseRouteHandler

from lmcache_admin.chunk_selection import find_chunks
from lmcache_admin.object_entries import worker_of
from lmcache_admin.parts import AdminParts
from lmcache_http.admin_api.chunks import CHUNKS_BODY_BYTES_MAX, Checksums, ShardChecksums, SumChunks
from lmcache_http.openapi import Operation
from lmcache_http.reading import read_body

OBJECTS_MAX: Final = 1024
"""Whose bytes one request may have summed up."""


def checksum_routes(cache: AdminParts) -> Sequence[BaseRouteHandler]:
    def sums(body: SumChunks) -> Checksums:
        chunks = find_chunks(cache, body, OBJECTS_MAX)
        shards = [
            ShardChecksums(
                worker_id=worker_of(shard.spaces[0].space.kv_rank),
                layouts=[space.layout.hex() for space, _ in shard.spaces],
                checksums=[None if each is None else each.hex() for each in digests],
            )
            for shard, digests in zip(chunks.shards, cache.l1.digests(chunks), strict=True)
        ]
        return Checksums(chunk_hashes=[each.hex() for each in chunks.chunk_hashes], shards=shards)

    @post(
        "/cache/checksums",
        status_code=HTTPStatus.OK,
        request_max_body_size=CHUNKS_BODY_BYTES_MAX,
        operation=Operation(
            "Sum up the bytes of chunks in L1, to compare servers or moments.",
            Checksums,
            body=SumChunks,
            refusals={409: "the shape of the chunks is not known"},
            tag="cache",
        ),
    )
    async def checksums(request: Request[Any, Any, Any]) -> dict[str, Any]:
        return (await sync_to_thread(sums, await read_body(request, SumChunks))).model_dump()

    return (checksums,)
