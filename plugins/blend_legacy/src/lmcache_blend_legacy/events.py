"""What happens to documents, for subscribers; built only where one wants it.  Stores are core's `ChunksStored`."""

from __future__ import annotations

from lmcache_core import Event


class LegacyLookupAnswered(Event, frozen=True):
    """An engine knows which chunks of a prompt's documents are there."""

    request_id: str
    model_name: str
    cache_salt: str
    tokens: int
    chunks: int
    found_tokens: int
    found_chunks: int
    seconds: float


class LegacyChunksRead(Event, frozen=True):
    """Chunks are in an engine's buffer; none where one of those that it asked for was not there any more."""

    request_id: str
    model_name: str
    cache_salt: str
    instance_id: int
    asked_chunks: int
    chunks: int


class LegacyRequestRefused(Event, frozen=True):
    """A request of an engine was refused; also one that registers a buffer.  `reason` is a sentence."""

    operation: str
    reason: str
