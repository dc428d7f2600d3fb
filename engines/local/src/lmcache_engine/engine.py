"""The cache of one engine worker: what was computed is stored by chunks, and found again by the tokens before it."""

from __future__ import annotations

import itertools
import logging
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from lmcache_client import LMCacheError
from lmcache_core import LocalCache, LookupRequest, PromptFacts, Shard, SlotReferences, StoredSpace, open_local
from lmcache_engine.config import LMCacheEngineConfig
from lmcache_engine.metadata import LMCacheMetadata
from lmcache_engine.pages import PagedConnector, slot_numbers
from lmcache_engine.pins import Pins
from lmcache_engine.prompts import Prompt, Prompts
from lmcache_engine.server_settings import MEMORY
from lmcache_engine.token_database import ChunkedTokenDatabase, Tokens

logger = logging.getLogger(__name__)

_WORKER: Final = 1
_CALLS: Final = b"calls"
_PINS: Final = b"pins"
"""Two connections of lookups, so that no lookup id replaces one of a call's."""
_ARGUMENTS: Final = ("slot_mapping", "kvcaches", "request_configs", "hashes", "offsets", "req_id")
_HEALTH_SECONDS: Final = 1.0
_WAIT_SHARE: Final = 2.0
"""A lookup ends by itself at its own deadline; this much later it counts as lost."""


class _Call(NamedTuple):
    prompt: Prompt
    slots: Any
    pages: PagedConnector
    first: int
    """Chunk."""


class LMCacheEngine:
    """Owns its memory and tiers from the start to `close`.  Calls may come from any thread of the process that made it;
    `store` and `retrieve` are for one thread at a time, as the connector is.

    A store that fails costs a hit, never a request: it is logged.  After a fork every call raises LMCacheError."""

    def __init__(
        self,
        config: LMCacheEngineConfig,
        metadata: LMCacheMetadata,
        token_database: ChunkedTokenDatabase,
        gpu_connector: PagedConnector | None = None,
        broadcast_fn: Callable[..., Any] | None = None,
        broadcast_object_fn: Callable[..., Any] | None = None,
    ) -> None:
        """`gpu_connector`: None for a process that only looks up.  The functions for broadcasts are taken and not called:
        each worker has what it needs.  Raises LMCacheError when the memory or a tier is not available."""
        del broadcast_fn, broadcast_object_fn
        self.config, self.metadata, self.token_database = config, metadata, token_database
        self.gpu_connector = gpu_connector
        for line in config.warnings:
            logger.warning("%s", line)
        if config.enable_blending or not isinstance(token_database, ChunkedTokenDatabase):
            raise ValueError(
                "an LMCacheEngine does not blend, vLLM's connector does: leave 'enable_blending' out, use "
                "ChunkedTokenDatabase"
            )
        settings = config.server_of(metadata.worker_id)
        self._hot_policy = settings.get("l2_prefetch_policy", "default") if settings["l2_adapter"] else None
        """Of prefetches, where memory keeps chunks; None: no tier takes what is stored."""
        self._has_tiers = bool(settings["l2_adapter"]) or "p2p_advertise_url" in settings
        self._opened = open_local(settings)
        self._is_closed = False
        self._copying = threading.Lock()
        """Held while bytes are copied, so that `close` takes no memory away meanwhile."""
        token_database.hasher = self._opened.hasher
        token_database.block_tokens = gpu_connector.block_tokens if gpu_connector else token_database.chunk_size
        self._prompts = Prompts(config, metadata, token_database, gpu_connector, self._has_tiers)
        self._numbers = itertools.count()
        self._frozen = False
        self._is_hot = bool(config.local_cpu) or self._has_tiers
        self._in_memory = config.asks_memory_alone()
        self._health = -_HEALTH_SECONDS, False
        self._pins = Pins(config.pin_timeout_sec, config.pin_check_interval_sec)

    def post_init(self, kvcaches: Any = None) -> None:
        """The engine's tensors are there.  Raises ValueError for those that do not fit to the metadata."""
        if kvcaches is not None:
            self._pages().register(kvcaches)
            self.token_database.block_tokens = self._pages().block_tokens

    # --- the verbs

    def lookup(
        self,
        tokens: Tokens = None,
        hashes: Sequence[bytes | int] | None = None,
        offsets: Sequence[int] | None = None,
        search_range: Sequence[str] | None = None,
        lookup_id: str | None = None,
        pin: bool = False,
        request_configs: dict[str, Any] | None = None,
    ) -> int:
        """How many tokens, from the first on, are there in chunks; 0 where the cache is unhealthy.

        `hashes` in place of tokens: of each chunk, by the token database or by the engine; `offsets`: the tokens of each.  What
        lower tiers have of them is brought into memory, unless `search_range` names memory alone.  With `pin` all of it stays
        there until `lookup_unpin` of this `lookup_id`, or for `pin_timeout_sec`."""
        if pin and lookup_id is None:
            raise ValueError("pin=True needs a lookup_id, by which it is undone")
        in_memory = self._asks_memory_alone(search_range)
        self._pins.warn_late()
        storage = self._cache.storage
        if not self.is_healthy():
            return 0
        if hashes is None:
            prompts = [self._prompts.of_tokens(tokens, request_configs)]
        else:
            prompts = self._prompts.looked_up(hashes, offsets, request_configs)
        connection, name = (_PINS, str(lookup_id)) if pin else (_CALLS, self._name())
        found = next((found for each in prompts if (found := self._find(connection, name, each, 0, in_memory))), 0)
        if not pin:
            storage.end_lookup(connection, name)
        else:
            self._pins.add(name)
        return self._worthwhile(found)

    def lookup_unpin(self, lookup_id: str) -> None:
        """What this lookup has pinned may leave memory.  Again, and for an unknown one: nothing."""
        self._cache.storage.end_lookup(_PINS, lookup_id)
        self._pins.end(lookup_id)

    def store(
        self,
        tokens: Tokens = None,
        hashes: Sequence[bytes | int] | None = None,
        offsets: Sequence[int] | None = None,
        mask: Any = None,
        **kwargs: Any,
    ) -> None:
        """Store the chunks of a prompt that are not there yet.  `slot_mapping`: the slot of each token in the KV cache;
        `kvcaches`: the tensors, unless `post_init` had them; `request_configs`: tags and tenant; `hashes` and `offsets`: the
        engine's own, in place of tokens.

        Raises ValueError for what cannot be meant; where memory is short, a prefix is stored, with a warning."""
        for _ in self._store(self._call(tokens, mask, {**kwargs, "hashes": hashes, "offsets": offsets}), [None]):
            pass

    def store_layer(self, tokens: Tokens = None, mask: Any = None, **kwargs: Any) -> Generator[None, None, None]:
        """As `store`, a layer at a time: the k-th `next` copies the k-th layer, and one more makes the chunks visible.  Dropped
        before, it has stored nothing.  Raises ValueError at once."""
        call = self._call(tokens, mask, kwargs)
        return self._store(call, _each(call.pages.layers))

    def retrieve(self, tokens: Tokens = None, mask: Any = None, **kwargs: Any) -> Any:
        """Copy what is there into the KV cache, from the first token that the mask does not leave out.  Takes what `store`
        takes.  Returns a mask: True for each token whose KV was copied (a tensor where torch is imported, else an array)."""
        *_, found = self._retrieve(self._call(tokens, mask, kwargs), [None])
        return found

    def retrieve_layer(self, tokens: Tokens = None, mask: Any = None, **kwargs: Any) -> Generator[Any, None, None]:
        """As `retrieve`, a layer at a time: the k-th `next` copies the k-th layer, the one behind the last of them releases
        the chunks, and another one gives the mask.  Raises ValueError at once."""
        call = self._call(tokens, mask, kwargs)
        return self._retrieve(call, _each(call.pages.layers))

    def clear(
        self,
        tokens: Tokens = None,
        locations: Sequence[str] | None = None,
        request_configs: dict[str, Any] | None = None,
    ) -> int:
        """Drop what is in memory and not in use, everything or the chunks of these tokens; other tiers keep what they have.
        Returns the objects."""
        if locations is not None and MEMORY not in locations:
            raise ValueError(f"locations: only {MEMORY} can be cleared, and others keep what they have")
        if tokens is None:
            return self._cache.storage.clear(force=False)
        prompt = self._prompts.of_tokens(tokens, request_configs)
        return self._cache.control.cache.drop(prompt.space.space, prompt.hashes, force=False)[0]

    def set_hot_cache(self, enabled: bool) -> None:
        """Whether memory keeps chunks.  Without, it is a buffer for the other tiers, and where there are none nothing is
        stored; what it has is dropped."""
        if self._hot_policy is not None:
            store, prefetch = ("default", self._hot_policy) if enabled else ("skip_l1", "default")
            self._cache.control.settings.change({"l2_store_policy": store, "l2_prefetch_policy": prefetch})
        else:
            self._is_hot = enabled
        if not enabled:
            self.clear()

    def freeze(self, enabled: bool) -> None:
        """While frozen, nothing is stored and lookups see memory only."""
        self._cache.freeze(enabled)
        self._frozen = enabled

    def is_frozen(self) -> bool:
        return self._frozen

    # --- about it

    def is_healthy(self) -> bool:
        """As of at most a second ago."""
        if self._is_closed:
            return False
        now, _ = time.monotonic(), self._opened.storage  # which raises after a fork
        if now - self._health[0] > _HEALTH_SECONDS:
            self._health = now, self._opened.healthy
        return self._health[1]

    def health(self) -> int:
        """0 where it is healthy."""
        return 0 if self.is_healthy() else 1

    def status(self) -> dict[str, Any]:
        """As `/status` of a server, and `lookup_pins`: how many there are, and how many were not undone in time."""
        self._pins.warn_late()
        return {**self._cache.status(), "lookup_pins": self._pins.status()}

    def close(self, drain_seconds: float = 10.0) -> bool:
        """Write what is on its way to other tiers, and give everything back.  False when not all of it was written in time.
        Closing it again does nothing; every other call raises LMCacheError then."""
        with self._copying:
            self._is_closed = True
        return self._opened.close(drain_seconds)

    # --- inside

    def _asks_memory_alone(self, search_range: Sequence[str] | None) -> bool:
        if search_range is None:
            return self._in_memory
        try:
            return self.config.asks_memory_alone(search_range)
        except LMCacheError as error:
            raise ValueError(str(error)) from None

    @property
    def _cache(self) -> LocalCache:
        if self._is_closed:
            raise LMCacheError("this engine is closed")
        return self._opened

    @property
    def _chunk_tokens(self) -> int:
        return self.token_database.chunk_size

    def _pages(self) -> PagedConnector:
        if self.gpu_connector is None:
            raise ValueError("this engine has no connector to a KV cache; give one, made by CreateGPUConnector")
        return self.gpu_connector

    def _call(self, tokens: Tokens, mask: Any, kwargs: dict[str, Any]) -> _Call:
        if unknown := kwargs.keys() - _ARGUMENTS:
            raise ValueError(f"unknown argument '{min(unknown)}'; known: {', '.join(_ARGUMENTS)}")
        slots, hashes, configs = (kwargs.get(name) for name in ("slot_mapping", "hashes", "request_configs"))
        self.post_init(kwargs.get("kvcaches"))
        if hashes is None:
            prompt = self._prompts.of_tokens(tokens, configs)
        else:
            prompt = self._prompts.of_hashes(hashes, kwargs.get("offsets"), configs)
        if slots is None:
            raise ValueError("slot_mapping is missing: the slot of each token in the KV cache")
        slots = slot_numbers(slots)
        if len(slots) < prompt.end:
            raise ValueError(f"slot_mapping has {len(slots)} slots for {prompt.tokens} tokens; it has one for each")
        return _Call(prompt, slots, self._pages(), self.token_database.first_chunk(mask, prompt.tokens))

    def _store(self, call: _Call, steps: Sequence[range | None]) -> Generator[None, None, None]:
        """Copies one step for each `next`, and publishes behind the last."""
        prompt, first = call.prompt, call.first
        storage, hashes = self._cache.storage, prompt.hashes[first:] if self._is_hot else ()
        references, indexes = storage.reserve(_WORKER, prompt.space, hashes, may_wait=lambda: True)
        chunks = [first + each for each in indexes]
        try:
            for layers in steps:
                if chunks:
                    with self._copying:
                        call.pages.to_objects(call.slots, chunks, prompt.end, self._addresses(references), layers)
                yield
        except BaseException:
            if chunks:
                storage.discard(references)
            raise
        if chunks:
            storage.publish(references, chunks[0], self._name())
        done = indexes[-1] + 1 if indexes else 0
        if done < len(hashes) and not self._frozen and not self._are_there(prompt.space, hashes[done:], first + done):
            logger.warning("Local cpu memory under pressure, partial store")
        yield

    def _retrieve(self, call: _Call, steps: Sequence[range | None]) -> Generator[Any, None, None]:
        """Copies one step for each `next`, releases behind the last, and then gives the mask."""
        prompt, first, size = call.prompt, call.first, self.token_database.chunk_size
        name, storage, begin = self._name(), self._cache.storage, first * size
        references: SlotReferences | None = None
        try:
            end = begin + self._worthwhile(self._find(_CALLS, name, prompt, first, self._in_memory))
            chunks = range(first, -(-end // size))
            if chunks:
                named = prompt.hashes[chunks.start : chunks.stop]
                references = storage.acquire(_WORKER, name, prompt.space, named, first)
            for layers in steps:
                if references is not None:
                    with self._copying:
                        call.pages.from_objects(call.slots, chunks, end, self._addresses(references), layers)
                yield None
        finally:
            if references is not None:
                storage.release(references)
            storage.end_lookup(_CALLS, name)
        yield None
        yield _mask(prompt.tokens, begin, end if references is not None else begin)

    def _find(self, connection: bytes, name: str, prompt: Prompt, first: int, in_memory: bool = False) -> int:
        """Tokens of the chunks from `first` on that are there, and are held until this lookup ends."""
        hashes = prompt.hashes[first:]
        if not hashes:
            return 0
        space, storage = prompt.space.space, self._cache.storage
        facts = PromptFacts(space.model_name, space.cache_salt, 1, prompt.tokens, len(hashes))
        storage.lookup(LookupRequest(connection, name, (Shard((prompt.space,)),), hashes, 1, facts, in_memory))
        found = storage.lookup_result(connection, name)
        if found is None:
            found = self._wait(connection, name)
        begin = first * self._chunk_tokens
        return min(begin + found * self._chunk_tokens, prompt.end) - begin if found else 0

    def _wait(self, connection: bytes, name: str) -> int:
        answers: list[int] = []
        is_over = threading.Event()

        def take(found: int) -> bool:
            answers.append(found)
            is_over.set()
            return True

        self._cache.storage.on_lookup(connection, name, take)
        if not is_over.wait(float(self.config.blocking_timeout_secs) + _WAIT_SHARE):
            logger.warning("a lookup was not answered in time and counts as a miss name=%s", name)
        return answers[0] if answers else 0

    def _are_there(self, space: StoredSpace, hashes: Sequence[bytes], first: int) -> bool:
        references = self._cache.storage.acquire(_WORKER, self._name(), space, hashes, first)
        if references is not None:
            self._cache.storage.release(references)
        return references is not None

    def _addresses(self, references: SlotReferences) -> list[int]:
        base, storage = self._cache.region.address, self._cache.storage
        return [base + storage.payload_offset(slot) for slot in references.slots]

    def _worthwhile(self, found: int) -> int:
        return found if found >= self.config.min_retrieve_tokens else 0

    def _name(self) -> str:
        return f"call-{next(self._numbers)}"


def _each(layers: int) -> list[range | None]:
    return [range(layer, layer + 1) for layer in range(layers)]


def _mask(tokens: int, begin: int, end: int) -> Any:
    torch = sys.modules.get("torch")
    mask = np.zeros(tokens, bool) if torch is None else torch.zeros(tokens, dtype=torch.bool)
    mask[begin:end] = True
    return mask
