"""Objects between storage and JSON: keys as text, and what a listing says of each."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from lmcache_admin.key_filter import KeyFilter
from lmcache_core import (
    CachedObject,
    ObjectKey,
    ProtocolError,
    parse_canonical,
    parse_model_name,
    parse_salt,
    salt_text,
)
from lmcache_http.problem import ProblemError


def read_keys(keys: Sequence[str]) -> list[ObjectKey]:
    """Raises ProblemError, 422, for an invalid key."""
    try:
        return [parse_canonical(bytes.fromhex(key)) for key in keys]
    except ProtocolError as error:
        raise ProblemError(
            HTTPStatus.UNPROCESSABLE_ENTITY, f"field 'keys': {error}; take `key` of GET /cache/objects"
        ) from None


def read_filter(model_name: str | None, cache_salt: str | None) -> KeyFilter:
    """Raises ProblemError, 422, for an invalid salt."""
    return KeyFilter(model_name, None if cache_salt is None else read_salt(cache_salt))


def read_salt(text: str) -> str:
    """The empty text is the empty salt, too.  Raises ProblemError, 422."""
    try:
        return parse_salt(text) if text else ""
    except ValueError as error:
        raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, f"cache_salt: {error}") from None


def l1_entry(found: CachedObject) -> dict[str, Any]:
    return {
        **l2_entry(found.key, None),
        "state": found.state,
        "payload_bytes": found.payload_bytes,
        "slot_bytes": found.slot_bytes,
    }


def l2_entry(key: ObjectKey, stored_bytes: int | None) -> dict[str, Any]:
    """What a key and its size say, as `ObjectEntry` has it."""
    space, model = key.space, parse_model_name(key.space.model_name)
    return {
        "key": key.canonical.hex(),
        "model_name": model.served,
        "identity": model.identity,
        "variant": model.variant,
        "world_size": space.kv_rank >> 24,
        "worker_id": worker_of(space.kv_rank),
        "kv_rank": space.kv_rank,
        "object_group": space.object_group,
        "cache_salt": salt_text(space.cache_salt),
        "chunk_hash": key.chunk_hash.hex(),
        "chunk_tokens": space.chunk_tokens,
        "hash_algorithm": space.chain.name.lower(),
        "layout": space.layout.hex(),
        "state": None,
        "payload_bytes": None,
        "slot_bytes": None,
        "stored_bytes": stored_bytes,
    }


def worker_of(kv_rank: int) -> int:
    return kv_rank >> 16 & 0xFF
