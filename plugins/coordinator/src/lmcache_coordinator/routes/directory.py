"""`/directory`: which servers have which keys."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from http import HTTPStatus
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from litestar import Request, get, post
from litestar.handlers import BaseRouteHandler
from pydantic import ConfigDict, Field, model_validator

from lmcache_client.errors import LMCacheError
from lmcache_coordinator.models import DirectoryStats, EventKey, InstanceId, LocationCount
from lmcache_coordinator.posted_events import event_hash
from lmcache_coordinator.registry import UnknownInstanceError
from lmcache_coordinator.routes.requests import ASKS, UNKNOWN, call, salt_of
from lmcache_coordinator.routing import PROMPT_TOKENS_MAX
from lmcache_coordinator.server_api import Listed, ServerApi
from lmcache_core import KeySpace, ObjectKey, parse_canonical
from lmcache_fleet.messages import HASH_BYTES, L1
from lmcache_fleet.placements import space_number
from lmcache_http.models import Answer, QueryParameters, RequestBody
from lmcache_http.openapi import Operation
from lmcache_http.problem import ProblemError
from lmcache_http.reading import read_body, read_query

if TYPE_CHECKING:
    from lmcache_coordinator.coordinator import Coordinator

KEYS_MAX: Final = 10_000
BODY_BYTES_MAX: Final = 8 << 20
ASKED_MAX: Final = 4
"""Servers that are asked at a time: each may keep a thread until its time is up."""


class DirectoryQuestion(RequestBody):
    """Keys, or the prompt whose keys they are."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"keys": [{"chunk_hash_hex": "aa", "model_name": "m", "kv_rank": 0}]}]}
    )

    keys: list[EventKey] | None = Field(None, max_length=KEYS_MAX)
    token_ids: list[Annotated[int, Field(ge=0, lt=2**32)]] | None = Field(None, max_length=PROMPT_TOKENS_MAX)
    model_name: str | None = Field(None, max_length=1024)
    world_size: int = Field(1, ge=1, le=255)
    cache_salt: str = Field("", max_length=256)

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.keys is None) == (self.token_ids is None):
            raise ValueError("expected keys or token_ids, and not both")
        if self.token_ids is not None and self.model_name is None:
            raise ValueError("token_ids need a model_name")
        return self


class DirectoryKey(Answer):
    chunk_hash_hex: str
    model_name: str
    kv_rank: int
    object_group_id: int
    cache_salt: str
    chunk_tokens: int
    chain: str

    @classmethod
    def of_space(cls, space: KeySpace, chunk_hash: bytes) -> Self:
        return cls(
            chunk_hash_hex=chunk_hash.hex(),
            model_name=space.model_name,
            kv_rank=space.kv_rank,
            object_group_id=space.object_group,
            cache_salt=space.cache_salt,
            chunk_tokens=space.chunk_tokens,
            chain=space.chain.name.lower(),
        )


class Placement(Answer):
    instance_id: str
    """Empty: every server that uses the backend."""
    tier: Literal["l1", "l2"]
    backend: str
    worker: int


class Placed(Answer):
    key: DirectoryKey
    placements: list[Placement]


class DirectoryAnswer(Answer):
    chunks: int
    """Whole chunks of the prompt, or keys that were asked about."""
    results: list[Placed]


class KeysQuery(QueryParameters):
    tier: Literal["l1", "l2"] = Field(
        "l2",
        description="l2: keys of shared L2.  l1: those of one server, which is asked at its admin API: the directory has 64 "
        "bits of each.",
    )
    instance_id: InstanceId | None = Field(None, description="Whose L1.")
    backend: str | None = Field(None, max_length=256, description="Of this backend of L2 alone.")
    offset: int = Field(0, ge=0, lt=2**31, description="How many of L2 to leave out.")
    limit: int = Field(1000, ge=1, le=KEYS_MAX, description="How many at most.")
    page_token: str | None = Field(
        None,
        min_length=1,
        max_length=4096,
        description="Of L1: `next_page_token` of the page before; none: the first page.",
    )

    @model_validator(mode="after")
    def _of_its_tier(self) -> Self:
        if self.tier == "l1":
            if self.instance_id is None:
                raise ValueError("tier l1 needs an instance_id")
            if self.backend is not None or self.offset:
                raise ValueError("backend and offset are for tier l2; pages of l1 are asked for with page_token")
        elif self.instance_id is not None or self.page_token is not None:
            raise ValueError("instance_id and page_token are for tier l1; pages of l2 are asked for with offset")
        return self


class StoredKey(Answer):
    key: DirectoryKey
    backend: str
    size_bytes: int


class Keys(Answer):
    total: int
    """What the coordinator knows of; of L1, a server may say more or less at this moment."""
    keys: list[StoredKey]
    next_page_token: str | None = None
    """Of L1; left out at its end.  A page may be short, and even empty, before that."""


def directory_routes(coordinator: Coordinator) -> Sequence[BaseRouteHandler]:
    asking = BoundedSemaphore(ASKED_MAX)

    @get("/directory/stats", operation=Operation("Size of the directory.", DirectoryStats, tag="directory"))
    async def stats() -> dict[str, Any]:
        counts = await call(coordinator.placements.counts)
        rows = [
            LocationCount(instance_id=each.instance, worker=each.worker, source=each.source, keys=keys)
            for each, keys in sorted(counts.items())
        ]
        figures = await call(coordinator.views.figures)
        stats = DirectoryStats(keys_by_location=rows, size_bytes=coordinator.placements.size_bytes())
        return {**figures, **stats.model_dump()}

    @post(
        "/directory/lookup",
        status_code=HTTPStatus.OK,
        request_max_body_size=BODY_BYTES_MAX,
        operation=Operation(
            "Who has keys, or the chunks of a prompt.",
            DirectoryAnswer,
            body=DirectoryQuestion,
            scopes=ASKS,
            tag="directory",
        ),
    )
    async def lookup(request: Request[Any, Any, Any]) -> dict[str, Any]:
        asked = await read_body(request, DirectoryQuestion)
        found: DirectoryAnswer = await call(_lookup, coordinator, asked)
        return found.model_dump()

    @get(
        "/directory/keys",
        operation=Operation(
            "Keys of shared L2, or of a server's L1, in no order.",
            Keys,
            query=KeysQuery,
            refusals={
                **UNKNOWN,
                502: "the server cannot be asked at its admin API",
                503: "too many servers are being asked",
            },
            tag="directory",
        ),
    )
    async def keys(request: Request[Any, Any, Any]) -> dict[str, Any]:
        query = read_query(request, KeysQuery)
        if query.instance_id is not None:
            found: Keys = await call(_l1_keys, coordinator, query.instance_id, query, asking)
            return found.model_dump(exclude_none=True)
        total, page = await call(coordinator.usage.page, query.backend, query.offset, query.limit)
        rows = [
            StoredKey(key=DirectoryKey.of_space(key.space, key.chunk_hash), backend=backend.name, size_bytes=size)
            for backend, key, size in page
        ]
        return Keys(total=total, keys=rows).model_dump(exclude_none=True)

    return stats, lookup, keys


def _l1_keys(coordinator: Coordinator, instance_id: str, query: KeysQuery, asking: BoundedSemaphore) -> Keys:
    """Raises UnknownInstanceError, ProblemError."""
    server = coordinator.registry.find(instance_id)
    if server is None:
        raise UnknownInstanceError(f"instance '{instance_id}' is not registered")
    if not asking.acquire(blocking=False):
        raise ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, f"{ASKED_MAX} servers are being asked; try again later")
    try:
        with closing(ServerApi(server, coordinator.settings.member_token_file)) as api:
            page = api.page("l1", query.limit, query.page_token)
            rows = [_l1_key(entry) for entry in page.entries]
    except (LMCacheError, ValueError) as error:
        raise ProblemError(
            HTTPStatus.BAD_GATEWAY,
            f"instance '{instance_id}' did not list its L1: {error}; its admin API must be reachable from here, with the token "
            "of --member-token-file",
        ) from None
    finally:
        asking.release()
    counts = coordinator.placements.counts()
    total = sum(keys for each, keys in counts.items() if (each.instance, each.source) == (instance_id, L1))
    return Keys(total=total, keys=rows, next_page_token=page.next_page_token)


def _l1_key(entry: Listed) -> StoredKey:
    """Raises ValueError, ProtocolError."""
    key = parse_canonical(bytes.fromhex(str(entry.key)))
    return StoredKey(
        key=DirectoryKey.of_space(key.space, key.chunk_hash), backend=L1, size_bytes=entry.payload_bytes or 0
    )


def _lookup(coordinator: Coordinator, asked: DirectoryQuestion) -> DirectoryAnswer:
    """A key that is given does not say its chunk size, chain and layout: it is looked up in all that members have named."""
    if asked.keys is None:
        salt = salt_of(asked.cache_salt) if asked.cache_salt else ""
        by_space = coordinator.router.keys_of_prompt(
            asked.model_name or "", salt, asked.token_ids or (), asked.world_size
        )
        chunks = max((len(hashes) // HASH_BYTES for hashes in by_space.values()), default=0)
        keys = [
            ObjectKey(space, hashes[at : at + HASH_BYTES])
            for space, hashes in by_space.items()
            for at in range(0, len(hashes), HASH_BYTES)
        ]
    else:
        chunks = len(asked.keys)
        keys = [
            ObjectKey(space, event_hash(key.chunk_hash_hex))
            for key in asked.keys
            for space in coordinator.journals.spaces.of(key.model_name, key.cache_salt)
            if (space.kv_rank, space.object_group) == (key.kv_rank, key.object_group_id)
        ]
    results = []
    for key in keys:
        (locations,) = coordinator.placements.lookup(space_number(key.space.tail), key.chunk_hash)
        placements = [
            Placement(
                instance_id=each.instance,
                tier="l1" if each.source == L1 else "l2",
                backend=each.source,
                worker=each.worker,
            )
            for each in locations
        ]
        if placements:
            results.append(Placed(key=DirectoryKey.of_space(key.space, key.chunk_hash), placements=placements))
    return DirectoryAnswer(chunks=chunks, results=results)
