"""`/query` and `/query_by_hash`: how long a prefix of a prompt each server has, for routers.

The form is the one that indexers of KV events share: by tenant and instance, tokens of the longest prefix, and by medium."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import cache, partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from litestar import MediaType, Request, Response, post
from litestar.handlers import BaseRouteHandler
from pydantic import AliasChoices, ConfigDict, Field, RootModel

from lmcache_coordinator.models import InstanceId
from lmcache_coordinator.routes.requests import ASKS, at_once, call, salt_of
from lmcache_coordinator.routing import PROMPT_CHUNKS_MAX, PROMPT_TOKENS_MAX, Match
from lmcache_fleet.messages import HASH_BYTES
from lmcache_http.models import Answer, RequestBody
from lmcache_http.openapi import Operation
from lmcache_http.problem import ProblemError
from lmcache_http.reading import read_body

if TYPE_CHECKING:
    from lmcache_coordinator.coordinator import Coordinator

BODY_BYTES_MAX: Final = 16 << 20
QUICK_TOKENS: Final = 16_384
QUICK_CHUNKS: Final = 1024
"""Of prompts that are looked up on the event loop; longer ones are on threads."""
Hash = Annotated[str, Field(pattern=rf"^[0-9a-fA-F]{{{2 * HASH_BYTES}}}$")]


class _Question(RequestBody):
    model_config = ConfigDict(populate_by_name=True)

    model: str = Field(
        min_length=1,
        max_length=1024,
        validation_alias=AliasChoices("model", "model_name"),
        description="As engines are asked for it, or a whole name of keys.",
    )
    cache_salt: str = Field("", max_length=256)
    tenant_id: str = Field("default", min_length=1, max_length=256, description="A heading of the answer; no more.")
    instance_id: InstanceId | None = Field(None, description="This server alone.")
    lora_name: str | None = Field(None, max_length=1024)


class PrefixQuestion(_Question):
    model_config = ConfigDict(json_schema_extra={"examples": [{"model": "m", "token_ids": [1, 15, 100]}]})

    token_ids: list[Annotated[int, Field(ge=0, lt=2**32)]] | None = Field(None, max_length=PROMPT_TOKENS_MAX)
    chunk_hashes: list[Hash] | None = Field(None, max_length=PROMPT_CHUNKS_MAX, description="As in `/query_by_hash`.")
    block_size: int | None = Field(
        None, ge=1, le=2**31, description="Tokens per hash, where hashes are given; tokens need none."
    )


class HashQuestion(_Question):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "m", "block_size": 256, "seq_hashes": ["ab" * HASH_BYTES]}]}
    )

    seq_hashes: list[Hash] = Field(
        max_length=PROMPT_CHUNKS_MAX,
        validation_alias=AliasChoices("seq_hashes", "block_hash", "block_hashes", "chunk_hashes"),
        description="Chunk hashes of the prompt in order, in hex.",
    )
    block_size: int = Field(ge=1, le=2**31, description="Tokens per hash.")


class Matched(Answer):
    """In tokens."""

    longest_matched: int
    """The longest prefix that the server has, wherever it has each chunk."""
    GPU: int = 0
    """This cache has nothing there."""
    DP: dict[str, int]
    """By data-parallel rank: all ranks of an instance use one server."""
    CPU: int
    DISK: int
    chunk_tokens: int
    chain: str
    """Hashes are compared within one chunk size and chain only."""
    same_family: bool
    """False: the server names chunks in another way, by its chunk size or its seed, so that nothing is known of it here."""


class Matches(RootModel[dict[str, dict[str, Matched]]]):
    """By tenant, and by instance."""


def prefix_routes(coordinator: Coordinator) -> Sequence[BaseRouteHandler]:
    @post(
        "/query",
        status_code=HTTPStatus.OK,
        request_max_body_size=BODY_BYTES_MAX,
        operation=Operation(
            "How long a prefix of a prompt each server has.",
            Matches,
            body=PrefixQuestion,
            scopes=ASKS,
            direct=True,
            tag="routing",
        ),
    )
    async def query(request: Request[Any, Any, Any]) -> Any:
        asked = await read_body(request, PrefixQuestion)
        if (asked.token_ids is None) == (asked.chunk_hashes is None):
            raise _refused("expected token_ids or chunk_hashes, and not both")
        if asked.chunk_hashes is not None:
            if asked.block_size is None:
                raise _refused("block_size: chunk_hashes need it; it is the chunk size of the servers")
            return await _answer(asked, None, asked.chunk_hashes, asked.block_size)
        return await _answer(asked, asked.token_ids, (), None)

    @post(
        "/query_by_hash",
        status_code=HTTPStatus.OK,
        request_max_body_size=BODY_BYTES_MAX,
        operation=Operation(
            "The same for a prompt whose chunk hashes are known.",
            Matches,
            body=HashQuestion,
            scopes=ASKS,
            direct=True,
            tag="routing",
        ),
    )
    async def by_hash(request: Request[Any, Any, Any]) -> Any:
        asked = await read_body(request, HashQuestion)
        return await _answer(asked, None, asked.seq_hashes, asked.block_size)

    async def _answer(
        asked: _Question, tokens: Sequence[int] | None, hashes: Sequence[str], chunk_tokens: int | None
    ) -> Any:
        if asked.lora_name:
            raise _refused(
                "lora_name: keys of this cache have an adapter in the name of their model; give that whole name as model"
            )
        salt = salt_of(asked.cache_salt) if asked.cache_salt else ""
        if tokens is not None:
            find = partial(coordinator.router.by_tokens, asked.model, salt, tokens)
        else:
            packed = bytes.fromhex("".join(hashes))
            find = partial(coordinator.router.by_hashes, asked.model, salt, chunk_tokens or 0, packed)
        is_quick = len(tokens or ()) <= QUICK_TOKENS and len(hashes) <= QUICK_CHUNKS
        found = at_once(find) if is_quick and not coordinator.journals.is_busy() else await call(find)
        unlike = coordinator.families.unlike_ours() if tokens is not None else set()
        described = _described(found, chunk_tokens, asked.instance_id, unlike)
        return Response(msgspec.json.encode({asked.tenant_id: described}), media_type=MediaType.JSON)

    return query, by_hash


def _described(
    found: Mapping[str, Match], chunk_tokens: int | None, only: str | None, unlike: Set[str]
) -> dict[str, Any]:
    @cache
    def described(match: Match, is_unlike: bool) -> msgspec.Raw:  # most of a thousand servers have the same
        matched = Matched(
            longest_matched=match.longest,
            DP={"0": match.longest},
            CPU=match.memory,
            DISK=match.storage,
            chunk_tokens=match.family.chunk_tokens,
            chain=match.family.chain.name.lower(),
            same_family=chunk_tokens in (None, match.family.chunk_tokens) and not is_unlike,
        )
        return msgspec.Raw(matched.model_dump_json().encode())

    return {
        instance: described(match, instance in unlike) for instance, match in found.items() if only in (None, instance)
    }


def _refused(detail: str) -> ProblemError:
    return ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, detail)
