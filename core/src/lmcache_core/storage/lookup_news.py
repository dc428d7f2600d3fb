"""What subscribers are told of lookups, and what is known of a prompt where its module says nothing."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from lmcache_core.contracts.events import LookupAbandoned, LookupFinished, LookupHashes, LookupStarted, Publisher
from lmcache_core.contracts.storage import LookupRequest, PromptFacts, Shard, SparseLookupRequest
from lmcache_core.model.keys import KeySpace
from lmcache_core.storage.lookup_table import Lookup


class LookupNews:
    """Each lookup is told of twice: when it starts, and when it has its answer or will never have one.  Any thread."""

    def __init__(self, events: Publisher) -> None:
        self._events = events

    def began(self, lookup: Lookup, chunk_hashes: Sequence[bytes]) -> None:
        events, prompt = self._events, lookup.prompt
        if events.wants(LookupStarted):
            events.publish(
                LookupStarted(
                    lookup.request_id,
                    prompt.model_name,
                    prompt.cache_salt,
                    prompt.tokens,
                    prompt.chunks,
                    prompt.trace_context,
                )
            )
        if chunk_hashes and events.wants(LookupHashes):
            events.publish(
                LookupHashes(
                    lookup.request_id,
                    prompt.model_name,
                    prompt.cache_salt,
                    prompt.world_size,
                    prompt.tokens,
                    b"".join(chunk_hashes),
                )
            )

    def answered(self, lookup: Lookup, seconds: float) -> None:
        prompt = lookup.prompt
        if self._events.wants(LookupFinished):
            self._events.publish(
                LookupFinished(
                    lookup.request_id,
                    prompt.model_name,
                    prompt.cache_salt,
                    prompt.chunks,
                    lookup.hit_chunks,
                    lookup.l2_chunks,
                    seconds,
                    prompt.tokens,
                    prompt.trace_context,
                )
            )

    def abandoned(self, lookup: Lookup, seconds: float) -> None:
        prompt = lookup.prompt
        self._events.publish(
            LookupAbandoned(
                lookup.request_id, prompt.model_name, prompt.cache_salt, prompt.tokens, prompt.chunks, seconds
            )
        )


def prompt_of(request: LookupRequest | SparseLookupRequest) -> tuple[PromptFacts, int]:
    """What the request says of its prompt, or where it says nothing or less than it asks for, what follows from its shards
    and hashes; and the tokens of a chunk, 0 where there is no shard and so nothing to be found."""
    prompt, chunks = request.prompt, len(request.chunk_hashes)
    space = _first_space(request.shards)
    chunk_tokens = space.chunk_tokens if space else 0
    tokens = chunks * chunk_tokens
    if prompt is None:
        model_name, salt = (space.model_name, space.cache_salt) if space else ("", "")
        prompt = PromptFacts(model_name, salt, len(request.shards), tokens, chunks)
    elif prompt.chunks < chunks or prompt.tokens < tokens:
        prompt = replace(prompt, chunks=max(prompt.chunks, chunks), tokens=max(prompt.tokens, tokens))
    return prompt, chunk_tokens


def _first_space(shards: Sequence[Shard]) -> KeySpace | None:
    for shard in shards:
        if shard.spaces:
            return shard.spaces[0].space
    return None
