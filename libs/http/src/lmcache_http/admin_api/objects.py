"""Objects of the cache as callers see them: listed, deleted, summed up."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import ConfigDict, FailFast, Field, model_validator

from lmcache_http.models import Answer, PageQuery, QueryParameters, RequestBody

HASH_BYTES: Final = 32
KEY_BYTES_MAX: Final = 2048
"""Of a canonical key."""
KEYS_MAX: Final = 5000
KEYS_BODY_BYTES_MAX: Final = 8 << 20
MODEL_NAME_CHARS_MAX: Final = 1024
CURSOR_CHARS_MAX: Final = 4096
"""Of a page token: adapters choose how they write where a page ended."""
ADAPTER_CHARS_MAX: Final = 256
_MODEL: Final = "a served name, or a name that an engine sends."
_SALT: Final = "Cache salt, `_default` for the empty one."

_KEY: Final = "ab" * 32 + "01006d" + "00010001" + "0000" + "0000" + "00010000" + "01" + "cd" * 16
_ENTRY: Final[dict[str, Any]] = {
    "key": _KEY,
    "model_name": "m",
    "identity": "",
    "variant": "",
    "world_size": 1,
    "worker_id": 0,
    "kv_rank": 16777472,
    "object_group": 0,
    "cache_salt": "_default",
    "chunk_hash": "ab" * 32,
    "chunk_tokens": 256,
    "hash_algorithm": "blake3",
    "layout": "cd" * 16,
    "state": "cached",
    "payload_bytes": 2097152,
    "slot_bytes": 2101248,
}
_DELETION: Final[dict[str, Any]] = {
    "status": "completed",
    "deletion_id": "deletion-0123456789abcdef",
    "tier": "l2",
    "adapter": "fs",
    "deleted": 3,
    "missing": 0,
    "skipped": 1,
    "failed": 0,
    "ok": True,
    "error": None,
}

Key = Annotated[str, Field(min_length=2 * HASH_BYTES, max_length=2 * KEY_BYTES_MAX, pattern=r"^([0-9a-fA-F]{2})+$")]


def _check_adapter(tier: str, adapter: str | None) -> None:
    if tier == "l1" and adapter is not None:
        raise ValueError("'adapter' is for the tier l2; leave it out")


class ObjectsQuery(PageQuery):
    """Which objects.  Every further page is asked for with the same filters."""

    tier: Literal["l1", "l2"] = Field("l2", description="Memory, or a storage backend.")
    adapter: str | None = Field(
        None, min_length=1, max_length=ADAPTER_CHARS_MAX, description="Which backend, where there are several."
    )
    model_name: str | None = Field(
        None,
        min_length=1,
        max_length=MODEL_NAME_CHARS_MAX,
        description=f"Of this model alone: {_MODEL}",
    )
    cache_salt: str | None = Field(None, min_length=1, description=f"Of this tenant alone: {_SALT}")
    page_token: str | None = Field(
        None,
        min_length=1,
        max_length=CURSOR_CHARS_MAX,
        description="`next_page_token` of the page before; none: the first page.",
    )

    @model_validator(mode="after")
    def _adapters_are_of_l2(self) -> Self:
        _check_adapter(self.tier, self.adapter)
        return self


class L2KeysQuery(ObjectsQuery):
    """The same, of backends alone."""

    tier: Literal["l2"] = Field("l2", description="There is no other.")


class ObjectEntry(Answer):
    """One object: one chunk of one shard of a model, for one tenant, in one layout."""

    key: str
    """What names it in a deletion: the canonical key in hex digits, which begins with the chunk hash."""
    model_name: str
    """As users know it."""
    identity: str = ""
    """What decides its KV bytes, in 16 hex digits; empty: its engines do not say."""
    variant: str = ""
    """What requests add to that, an adapter; empty: nothing."""
    world_size: int
    worker_id: int
    kv_rank: int
    object_group: int
    cache_salt: str
    chunk_hash: str
    chunk_tokens: int
    hash_algorithm: str
    layout: str
    """Fingerprint of its shape."""
    state: str | None = None
    """In L1: cached, held, pinned, writing or leaving."""
    payload_bytes: int | None = None
    slot_bytes: int | None = None
    """What it takes of L1."""
    stored_bytes: int | None = None
    """In a backend: its size with the header page, where the backend says it."""


class ObjectsPage(Answer):
    """A page.  It may be short, and even empty, before the last one, which has no `next_page_token`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "tier": "l1",
                    "adapter": None,
                    "shared": False,
                    "entries": [_ENTRY],
                    "next_page_token": "WyJsMSBib290IiwxXQ",
                }
            ]
        }
    )

    tier: str
    adapter: str | None
    shared: bool
    """True: other servers use the same backend, and what is deleted there is deleted for them, too."""
    entries: list[ObjectEntry]
    next_page_token: str | None


class DeleteObjects(RequestBody):
    """Which objects go.  `force` is for L1: what is held leaves with its last reader, what is pinned is pinned no more."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"keys": [_KEY], "tier": "l1"}]})

    keys: Annotated[list[Key], Field(min_length=1, max_length=KEYS_MAX, description="`key` of a listing."), FailFast()]
    tier: Literal["l1", "l2"] = Field("l2", description="Memory, or a storage backend.")
    adapter: str | None = Field(
        None, min_length=1, max_length=ADAPTER_CHARS_MAX, description="Which backend, where there are several."
    )
    force: bool = Field(False, description="In L1, what is held and what is pinned, too.")

    @model_validator(mode="after")
    def _adapters_are_of_l2(self) -> Self:
        _check_adapter(self.tier, self.adapter)
        return self


class DeleteL2Query(QueryParameters):
    """What goes: with both filters, what passes both."""

    adapter: str | None = Field(
        None, min_length=1, max_length=ADAPTER_CHARS_MAX, description="Which backend, where there are several."
    )
    model_name: str | None = Field(
        None,
        min_length=1,
        max_length=MODEL_NAME_CHARS_MAX,
        description=f"Everything of this model: {_MODEL}",
    )
    cache_salt: str | None = Field(None, min_length=1, description=f"Everything of this tenant: {_SALT}")
    everything: bool = Field(False, description="Everything that the backend has; without a filter this must be said.")


class DeleteL2Keys(RequestBody):
    """Single objects instead of a filter."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"keys": [_KEY]}]})

    keys: Annotated[list[Key], Field(min_length=1, max_length=KEYS_MAX, description="`key` of a listing."), FailFast()]


class DeletionAnswer(Answer):
    """What came of a deletion, or what has so far.  `ok`: it has ended, and nothing failed."""

    model_config = ConfigDict(json_schema_extra={"examples": [_DELETION]})

    status: str
    """running, completed, failed, or stopped with the server."""
    deletion_id: str | None
    """To ask again with, of a backend."""
    tier: str
    adapter: str | None
    deleted: int
    missing: int
    """Were not there."""
    skipped: int
    """Stay: held, pinned, or being loaded."""
    failed: int
    ok: bool
    error: str | None
