"""Events as a server publishes them, for tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b

from lmcache_core import Event, LookupFinished, LookupHashes, ObjectsAdded, ObjectsRead, ObjectsRemoved

MODEL = "model"


def chunk_hash(number: int) -> bytes:
    return blake2b(str(number).encode(), digest_size=32).digest()


def hashes(numbers: Iterable[int]) -> bytes:
    return b"".join(map(chunk_hash, numbers))


def asked(request: str, numbers: Sequence[int], salt: str = "", model: str = MODEL, at: float = 1000.0) -> LookupHashes:
    return LookupHashes(
        request_id=request,
        model_name=model,
        cache_salt=salt,
        world_size=1,
        prompt_tokens=len(numbers) * 16,
        chunk_hashes=hashes(numbers),
        at=at,
    )


def answered(
    request: str, requested: int, hit: int, salt: str = "", model: str = MODEL, at: float = 1000.0
) -> LookupFinished:
    return LookupFinished(
        request_id=request,
        model_name=model,
        cache_salt=salt,
        requested_chunks=requested,
        hit_chunks=hit,
        l2_chunks=0,
        seconds=0.002,
        at=at,
    )


def lookup(
    request: str, numbers: Sequence[int], hit: int = 0, salt: str = "", model: str = MODEL, at: float = 1000.0
) -> Iterator[Event]:
    yield asked(request, numbers, salt, model, at)
    yield answered(request, len(numbers), hit, salt, model, at)


def came(numbers: Sequence[int], salt: str = "", at: float = 1000.0, rank: int = 0) -> ObjectsAdded:
    return ObjectsAdded(
        model_name=MODEL,
        cache_salt=salt,
        kv_rank=rank,
        object_bytes=4096,
        origin="worker",
        request_id="r",
        first_chunk=0,
        chunk_hashes=hashes(numbers),
        at=at,
    )


def left(numbers: Sequence[int], reason: str = "evicted", at: float = 1000.0, rank: int = 0) -> ObjectsRemoved:
    return ObjectsRemoved(
        model_name=MODEL, cache_salt="", kv_rank=rank, reason=reason, chunk_hashes=hashes(numbers), at=at
    )


def read(numbers: Sequence[int], at: float = 1000.0, rank: int = 0) -> ObjectsRead:
    return ObjectsRead(
        model_name=MODEL,
        cache_salt="",
        kv_rank=rank,
        request_id="r",
        first_chunk=0,
        chunk_hashes=hashes(numbers),
        at=at,
    )
