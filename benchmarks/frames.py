"""Requests as an engine's frames, encoded before anything is measured; the same bytes go to every server."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from benchmarks.prompts import CHUNK_TOKENS
from lmcache_client import operations as ops
from lmcache_client.codec import OperationCodec
from lmcache_client.messages import EngineDrivenRegistration
from lmcache_client.operations import Operation

Frames = list[bytes]

MODEL: Final = "benchmark-model"
INSTANCE: Final = 1
UID: Final = b"\x01"
"""One request is on its way at a time, so all may have the same number."""
REGISTRATION: Final = EngineDrivenRegistration(INSTANCE, MODEL, 1, 16, 1, 8, "bfloat16", False, CHUNK_TOKENS)
"""Chunks of 8 KiB: what is measured is the server, not the copying of data."""
WAIT_SECONDS: Final = 10.0

_encode = msgspec.msgpack.encode
_ONE_RANK: Final = _encode(1)
_FRAMES: Final = {operation.name: OperationCodec(operation).frame for operation in ops.OPERATIONS}


def request(operation: Operation, *payload: Any) -> Frames:
    return [UID, _FRAMES[operation.name], *map(_encode, payload)]


def key(token_ids: msgspec.Raw, chunks: int, request_id: str, worker_id: int | None = None) -> dict[str, Any]:
    """A cache key over the first `chunks` chunks, its fields in the order of the wire."""
    return {
        "model_name": MODEL,
        "world_size": 1,
        "worker_id": worker_id,
        "token_ids": token_ids,
        "start": 0,
        "end": chunks * CHUNK_TOKENS,
        "request_id": request_id,
        "cache_salt": "",
        "request_configs": None,
        "num_kv_readers": 1,
    }


NOOP: Final = request(ops.NOOP)
REGISTER: Final = request(ops.REGISTER_ENGINE_DRIVEN, REGISTRATION)


class LookupCycle:
    """What a scheduler sends for one request: look up, take the answer, give the chunks back, end."""

    __slots__ = ("chunks", "end", "free", "lookup", "wait")

    def __init__(self, token_ids: msgspec.Raw, chunks: int, request_id: str) -> None:
        whole = _encode(key(token_ids, chunks, request_id))
        self.chunks = chunks
        self.lookup = [UID, _FRAMES[ops.LOOKUP.name], whole, _ONE_RANK]
        self.wait = request(ops.WAIT_PREFETCH_STATUS, request_id, WAIT_SECONDS)
        self.free = [UID, _FRAMES[ops.FREE_LOOKUP_LOCKS.name], whole, _ONE_RANK]
        self.end = request(ops.END_SESSION, request_id)


class StorePair:
    """What a worker sends to store all chunks of a prompt."""

    __slots__ = ("commit", "prepare")

    def __init__(self, token_ids: msgspec.Raw, chunks: int, request_id: str) -> None:
        whole = key(token_ids, chunks, request_id, worker_id=0)
        self.prepare = request(ops.PREPARE_STORE, whole, INSTANCE)
        self.commit = request(ops.COMMIT_STORE, whole, INSTANCE, b"")
