"""Lookups of the scheduler: sent early, answered between two steps, and always ended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final

import msgspec

from lmcache_client import EngineKey, LMCacheError, encode_tokens
from lmcache_vllm.blend_requests import BlendRequests
from lmcache_vllm.lookup import Lookup
from lmcache_vllm.metadata import kept_id
from lmcache_vllm.placement import Placement
from lmcache_vllm.request_state import RequestState
from lmcache_vllm.segments import ChainQuestion, chain
from lmcache_vllm.server_port import Question, Server, ServerPort
from lmcache_vllm.settings import Settings
from lmcache_vllm.stats import Counters

logger = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 0.002
"""How long a step waits for lookups that were only just sent, all of them together: most answers come sooner, and the next
step is later."""
_NO_TOKENS: Final = encode_tokens([])


class SchedulerLookups:
    """Asks the server for requests, and tells what it found. One thread."""

    def __init__(
        self,
        settings: Settings,
        placement: Placement,
        port: ServerPort,
        counters: Counters,
        clock: Callable[[], float],
        patience_seconds: float,
        blends: BlendRequests,
        tail_blocks: int = 0,
    ) -> None:
        """`blends` says which requests ask for more than their prefix. `tail_blocks`: tokens of a block, where the blocks
        behind the last whole chunk are looked up, too."""
        self._placement = placement
        self._blends = blends
        self._tail_blocks = tail_blocks
        self._port = port
        self._counters = counters
        self._clock = clock
        self._patience = self._patience_left = patience_seconds
        self._timeout = settings.lookup_timeout_ms / 1000
        self._load_timeout = max(self._timeout, settings.prefetch_timeout_seconds)
        self._early_max = settings.eager_lookups
        self._early: set[str] = set()
        self._beside: dict[str, set[str]] = {}
        """By request: what it has asked under other ids, for what an earlier turn has left and for its documents."""

    def use_model_name(self, model_name: str) -> None:
        """Ask under this name from now on. Before, requests wait for it as they wait for an answer."""
        self._placement = replace(self._placement, model_name=model_name)

    def send_early(self, state: RequestState, server: Server | None) -> None:
        """Look up a request that waits in vLLM's queue, unless the limit of early lookups is reached."""
        if len(self._early) < self._early_max and self._send(state, server):
            self._early.add(state.facts.request_id)

    def not_early(self, request_id: str) -> None:
        """The request left the queue."""
        self._early.discard(request_id)

    def step_ends(self) -> None:
        """The next one may wait again."""
        self._patience_left = self._patience

    def found(self, state: RequestState, server: Server | None) -> int | None:
        """The tokens that can be loaded for a request whose turn it is; None as long as that is not known."""
        now = self._clock()
        if state.asked_at is None:
            state.asked_at = now
        if not self._placement.model_name and server is not None and _looks_up(state):
            return None if now - state.asked_at < self._timeout else self._abandon(state, "timeout")
        lookup = state.lookup
        if lookup is None or lookup.is_stale(now) or lookup.server is not server:
            lookup = self._send(state, server)
        if lookup is None:
            return 0
        if lookup.hit_tokens is not None:
            return lookup.hit_tokens
        try:
            hit_tokens = lookup.take(min(self._patience_left, lookup.sent_at + self._patience - now))
        except LMCacheError as error:
            logger.warning("lookup failed request=%s error=%s", state.facts.request_id, error)
            return self._abandon(state, "error")
        finally:
            self._patience_left -= self._clock() - now
        if hit_tokens is not None:
            state.handoff_over = True
            # The rest belongs to other prompts, or was also found exactly.
            used = {kept_id(state.facts.request_id)} if lookup.kept else set()
            self._end_beside(state.facts.request_id, used.union(each.transfer.request_id for each in lookup.chains))
            self._counters.add("lookup_seconds", lookup.seconds)
            self._counters.add("hit_tokens", hit_tokens)
        elif lookup.waited(now, state.asked_at) >= (self._load_timeout if lookup.is_accepted else self._timeout):
            return self._abandon(state, "timeout")
        return hit_tokens

    def prompt_key(self, state: RequestState, server: Server | None) -> EngineKey | None:
        """Of all that can be stored of its prompt, tail included. None as long as that cannot be named, and for nothing."""
        if server is None or not self._placement.model_name or state.facts.skip_reason:
            return None
        state.use_server(server)
        end = self._end(state, server, state.facts.prompt_tokens)
        return self._key(state, state.encoded_tokens(end), end + -end % server.chunk_tokens) if end else None

    def forget(self, state: RequestState) -> None:
        """Release what was found for it, or will be. A later question for it is a new lookup."""
        if state.lookup is not None:
            self.release_all(state.lookup)
            state.lookup = None

    def release_all(self, lookup: Lookup) -> None:
        """Release what it has found, segments as well, and what no worker came for."""
        self.end(lookup.key.request_id)

    def end(self, request_id: str) -> None:
        """End all that the request has asked, and release what is held for it."""
        self._port.end(request_id)
        self._end_beside(request_id)

    def _end_beside(self, request_id: str, used: Collection[str] = ()) -> None:
        """All but those that are `used`."""
        asked = self._beside.pop(request_id, set())
        for other in asked.difference(used):
            self._port.end(other)
        if kept := asked.intersection(used):
            self._beside[request_id] = kept

    def free(self, lookup: Lookup, start: int, end: int) -> None:
        """Release the chunks of `[start, end)`, and the tail if it ends there."""
        if start < end:
            end += -end % lookup.server.chunk_tokens
            self._port.free(msgspec.structs.replace(lookup.key, token_ids=_NO_TOKENS, start=start, end=end))

    def _send(self, state: RequestState, server: Server | None) -> Lookup | None:
        if state.lookup is not None and state.lookup.asks_segments:
            self.release_all(state.lookup)
        state.lookup = None
        facts = state.facts
        asks_segments, kept = self._blends.wants(state), None
        chains: list[ChainQuestion] = []
        if server is None or not self._placement.model_name or not _looks_up(state):
            return None
        state.use_server(server)
        end = self._end(state, server, len(facts.tokens))
        if not end:
            return None
        if asks_segments:
            end = len(facts.tokens)  # segments begin and end anywhere
            key = self._key(state, state.encoded_unpadded(end), end)
            question = self._port.look_up_blend(key)
            if question is not None and self._blends.keeps:
                kept = self._ask_kept(state, key)
            if question is not None:
                chains = self._ask_chains(state, key, server.chunk_tokens)
        else:
            key = self._key(state, state.encoded_tokens(end), end + -end % server.chunk_tokens)
            handoff = None if facts.handoff and (facts.handoff.gives or state.handoff_over) else facts.handoff
            question = self._port.look_up(key, handoff)
        if question is None:
            return None
        self._counters.add("lookups")
        self._counters.add("lookup_tokens", end)
        state.lookup = Lookup(key, end, server, question, self._clock, asks_segments, kept, chains)
        return state.lookup

    def _ask_kept(self, state: RequestState, key: EngineKey) -> Question | None:
        name, request_id = self._placement.key_name(state.variant, approximate=True), key.request_id
        return self._ask_beside(
            request_id, msgspec.structs.replace(key, model_name=name, request_id=kept_id(request_id)), blends=True
        )

    def _ask_chains(self, state: RequestState, key: EngineKey, chunk_tokens: int) -> list[ChainQuestion]:
        """What is exact comes before what is not."""
        found = []
        for segment in self._blends.segments(state):
            for approximate in (False, True):
                transfer = chain(state, segment, chunk_tokens, approximate=approximate)
                own = msgspec.structs.replace(
                    key,
                    model_name=self._placement.key_name(transfer.variant, approximate=approximate),
                    token_ids=msgspec.Raw(transfer.tokens),
                    end=transfer.end,
                    request_id=transfer.request_id,
                )
                if question := self._ask_beside(key.request_id, own):
                    found.append(ChainQuestion(transfer, question))
        return found

    def _ask_beside(self, request_id: str, key: EngineKey, *, blends: bool = False) -> Question | None:
        self._beside.setdefault(request_id, set()).add(key.request_id)
        return self._port.look_up_blend(key) if blends else self._port.look_up(key)

    def _end(self, state: RequestState, server: Server, tokens: int) -> int:
        """Of what can be stored of the first `tokens`."""
        if self._tail_blocks:
            return state.tail_end(tokens, self._tail_blocks)
        return tokens // server.chunk_tokens * server.chunk_tokens

    def _abandon(self, state: RequestState, reason: str) -> int:
        self._counters.add("failed_lookups", reason=reason)
        self.end(state.facts.request_id)  # what it still finds is not to be held
        state.lookup = None
        state.may_look_up = False
        return 0

    def _key(self, state: RequestState, token_ids: bytes, end: int) -> EngineKey:
        facts, place = state.facts, self._placement
        return EngineKey(
            model_name=place.key_name(state.variant, approximate=False),
            world_size=place.world_size,
            worker_id=None,
            token_ids=msgspec.Raw(token_ids),
            start=0,
            end=end,
            request_id=facts.request_id,
            cache_salt=facts.cache_salt,
            request_configs=dict(facts.configs) if facts.configs else None,
            num_kv_readers=place.readers,
        )


def _looks_up(state: RequestState) -> bool:
    return state.may_look_up and state.facts.looks_up and not state.facts.skip_reason
