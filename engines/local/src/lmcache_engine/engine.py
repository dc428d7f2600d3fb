"""The cache of one engine worker: what was computed is stored by chunks, and found again by the tokens before it."""

from __future__ import annotations

import itertools
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from lmcache_client import ChunkLayout, LMCacheError
from lmcache_core import (
    HashChain,
    KeySpace,
    LocalCache,
    LookupRequest,
    PromptFacts,
    Shard,
    SlotReferences,
    StoredSpace,
    open_local,
    pack_kv_rank,
)
from lmcache_engine.config import LMCacheEngineConfig
from lmcache_engine.keys import SALT, tagged_model, tags_of
from lmcache_engine.metadata import LMCacheMetadata
from lmcache_engine.pages import PagedConnector, layout_of
from lmcache_engine.token_database import ChunkedTokenDatabase, Tokens

logger = logging.getLogger(__name__)

TIERS: Final = ("LocalCPUBackend", "LocalDiskBackend", "RemoteBackend")
_WORKER: Final = 1
_CALLS: Final = b"calls"
_PINS: Final = b"pins"
"""Two connections of lookups, so that no lookup id replaces one of a call's."""
_WAIT_SHARE: Final = 2.0
"""A lookup ends by itself at its own deadline; this much later it counts as lost."""


class _Prompt(NamedTuple):
    """What a call is about."""

    space: StoredSpace
    tokens: int
    hashes: Sequence[bytes]
    """Of all whole chunks."""


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
        self._cache: LocalCache = open_local(config.server)
        token_database.hasher = self._cache.hasher
        self._chain = HashChain.named(config.hash_algorithm)
        self._numbers = itertools.count()
        self._frozen = False

    def post_init(self, kvcaches: Any = None) -> None:
        """The engine's tensors are there.  Raises ValueError for those that do not fit to the metadata."""
        if kvcaches is not None:
            self._pages().register(kvcaches)

    # --- the verbs

    def lookup(
        self,
        tokens: Tokens,
        search_range: Sequence[str] | None = None,
        lookup_id: str | None = None,
        pin: bool = False,
        request_configs: dict[str, Any] | None = None,
    ) -> int:
        """How many tokens, from the first on, are there in whole chunks; 0 where the cache is unhealthy.

        What lower tiers have of them is brought into memory.  With `pin` all of it stays there until `lookup_unpin` of this
        `lookup_id`, or for `pin_timeout_sec`."""
        if pin and lookup_id is None:
            raise ValueError("pin=True needs a lookup_id, by which it is undone")
        _check_tiers(search_range)
        if not self._cache.healthy:
            return 0
        prompt = self._prompt(tokens, request_configs)
        connection, name = (_PINS, str(lookup_id)) if pin else (_CALLS, self._name())
        found = self._find(connection, name, prompt, 0)
        if not pin:
            self._cache.storage.end_lookup(connection, name)
        return self._worthwhile(found)

    def lookup_unpin(self, lookup_id: str) -> None:
        """What this lookup has pinned may leave memory.  Again, and for an unknown one: nothing."""
        self._cache.storage.end_lookup(_PINS, lookup_id)

    def store(self, tokens: Tokens, mask: Any = None, **kwargs: Any) -> None:
        """Store the whole chunks of a prompt that are not there yet.  `slot_mapping`: the slot of each token in the KV cache;
        `kvcaches`: the tensors, unless `post_init` had them; `request_configs`: tags and tenant.

        Raises ValueError for what cannot be meant; where memory is short, a prefix is stored, with a warning."""
        prompt, slots, pages = self._call(tokens, kwargs)
        first = self.token_database.first_chunk(mask, prompt.tokens)
        hashes = prompt.hashes[first:]
        if not hashes:
            return
        storage = self._cache.storage
        references, indexes = storage.reserve(_WORKER, prompt.space, hashes, may_wait=lambda: True)
        if references.slots:
            chunks = [first + each for each in indexes]
            try:
                pages.to_objects(slots, chunks, self._addresses(references))
            except BaseException:
                storage.discard(references)
                raise
            storage.publish(references, chunks[0], self._name())
        done = indexes[-1] + 1 if indexes else 0
        if done < len(hashes) and not self._frozen and not self._are_there(prompt.space, hashes[done:], first + done):
            logger.warning("Local cpu memory under pressure, partial store")

    def retrieve(self, tokens: Tokens, mask: Any = None, **kwargs: Any) -> Any:
        """Copy what is there into the KV cache, from the first token that the mask does not leave out.  Takes what `store`
        takes.  Returns a mask: True for each token whose KV was copied (a tensor where torch is imported, else an array)."""
        prompt, slots, pages = self._call(tokens, kwargs)
        first = self.token_database.first_chunk(mask, prompt.tokens)
        name = self._name()
        try:
            found = self._find(_CALLS, name, prompt, first)
            if not self._worthwhile(found):
                found = 0
            if found:
                found = self._load(name, prompt, slots, pages, range(first, first + found // self._chunk_tokens))
        finally:
            self._cache.storage.end_lookup(_CALLS, name)
        begin = first * self._chunk_tokens
        return _mask(prompt.tokens, begin, begin + found)

    def clear(self) -> int:
        """Drop everything that is in memory and not in use; other tiers keep what they have.  Returns the objects."""
        return self._cache.storage.clear(force=False)

    def freeze(self, enabled: bool) -> None:
        """While frozen, nothing is stored and lookups see memory only."""
        self._cache.freeze(enabled)
        self._frozen = enabled

    def is_frozen(self) -> bool:
        return self._frozen

    # --- about it

    def is_healthy(self) -> bool:
        return self._cache.healthy

    def health(self) -> int:
        """0 where it is healthy."""
        return 0 if self._cache.healthy else 1

    def status(self) -> dict[str, Any]:
        """As `/status` of a server."""
        return self._cache.status()

    def close(self, drain_seconds: float = 10.0) -> bool:
        """Write what is on its way to other tiers, and give everything back.  False when not all of it was written in time.
        Closing it again does nothing."""
        return self._cache.close(drain_seconds)

    # --- inside

    @property
    def _chunk_tokens(self) -> int:
        return self.token_database.chunk_size

    def _pages(self) -> PagedConnector:
        if self.gpu_connector is None:
            raise ValueError("this engine has no connector to a KV cache; give one, made by CreateGPUConnector")
        return self.gpu_connector

    def _call(self, tokens: Tokens, kwargs: dict[str, Any]) -> tuple[_Prompt, Any, PagedConnector]:
        slots = kwargs.pop("slot_mapping", None)
        self.post_init(kwargs.pop("kvcaches", None))
        prompt = self._prompt(tokens, kwargs.pop("request_configs", None))
        kwargs.pop("req_id", None)
        if kwargs:
            raise ValueError(f"unknown argument '{next(iter(kwargs))}'; known: slot_mapping, kvcaches, request_configs")
        if slots is None:
            raise ValueError("slot_mapping is missing: the slot of each token in the KV cache")
        if len(slots) < len(prompt.hashes) * self._chunk_tokens:
            raise ValueError(f"slot_mapping has {len(slots)} slots for {prompt.tokens} tokens; it has one for each")
        return prompt, slots, self._pages()

    def _prompt(self, tokens: Tokens, request_configs: dict[str, Any] | None) -> _Prompt:
        salt = str((request_configs or {}).get(SALT, ""))
        try:
            hashes = self.token_database.chunk_hashes(tokens, salt)
        except LMCacheError as error:
            raise ValueError(str(error)) from None
        return _Prompt(self._space(salt, tags_of(request_configs)), len(tokens), hashes)

    def _space(self, salt: str, tags: tuple[tuple[str, str], ...]) -> StoredSpace:
        about = self.metadata
        layout = self._layout()
        rank = pack_kv_rank(about.world_size, 0 if about.use_mla else about.worker_id)
        model = tagged_model(about.model_name, tags)
        space = KeySpace(model, rank, 0, salt, self._chunk_tokens, self._chain, layout.fingerprint)
        return StoredSpace(space, layout.payload_bytes)

    def _layout(self) -> ChunkLayout:
        return self.gpu_connector.layout if self.gpu_connector else layout_of(self.metadata, self._chunk_tokens)

    def _find(self, connection: bytes, name: str, prompt: _Prompt, first: int) -> int:
        """Tokens of the chunks from `first` on that are there, and are held until this lookup ends."""
        hashes = prompt.hashes[first:]
        if not hashes:
            return 0
        space, storage = prompt.space.space, self._cache.storage
        facts = PromptFacts(space.model_name, space.cache_salt, 1, prompt.tokens, len(hashes))
        storage.lookup(LookupRequest(connection, name, (Shard((prompt.space,)),), hashes, 1, facts))
        found = storage.lookup_result(connection, name)
        if found is None:
            found = self._wait(connection, name)
        return found * self._chunk_tokens

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

    def _load(self, name: str, prompt: _Prompt, slots: Any, pages: PagedConnector, chunks: range) -> int:
        storage = self._cache.storage
        hashes = prompt.hashes[chunks.start : chunks.stop]
        references = storage.acquire(_WORKER, name, prompt.space, hashes, chunks.start)
        if references is None:
            return 0
        try:
            pages.from_objects(slots, chunks, self._addresses(references))
        finally:
            storage.release(references)
        return len(chunks) * self._chunk_tokens

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


def _check_tiers(search_range: Sequence[str] | None) -> None:
    if search_range is None:
        return
    if unknown := [each for each in search_range if each not in TIERS]:
        raise ValueError(f"search_range: no tier is called {unknown[0]!r}; known: {', '.join(TIERS)}")
    if set(search_range) != set(TIERS):
        raise ValueError("search_range: a lookup asks all tiers; leave it out, or freeze(True) for memory alone")


def _mask(tokens: int, begin: int, end: int) -> Any:
    torch = sys.modules.get("torch")
    mask = np.zeros(tokens, bool) if torch is None else torch.zeros(tokens, dtype=torch.bool)
    mask[begin:end] = True
    return mask
