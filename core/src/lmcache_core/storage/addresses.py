"""Which chunks somebody means who is no engine: of one prompt, or named one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from lmcache_client.errors import ConfigError
from lmcache_client.layout import ObjectLayout
from lmcache_core.contracts.storage import Shard


class AddressError(ConfigError):
    """These chunks cannot be named.  The message says why, and what to do."""


class UnknownShapeError(AddressError):
    """Nobody has said what shape the chunks of this model have."""


class ChunkAddress(NamedTuple):
    """Chunks of one model and tenant, with exactly one of `token_ids` and `chunk_hashes`."""

    model_name: str
    world_size: int
    cache_salt: str
    token_ids: Sequence[int] | None = None
    """A prompt: its whole chunks are meant."""
    chunk_hashes: Sequence[bytes] | None = None
    """Any chunks, in any order."""
    layout: ObjectLayout | None = None
    """The shape of its chunks; None: the one that its workers have registered."""


class AddressedChunks(NamedTuple):
    """The same, as storage knows it: every shard of each chunk."""

    shards: tuple[Shard, ...]
    chunk_hashes: Sequence[bytes]
    is_prompt: bool
    """True: a chunk is of use only where all chunks before it are there."""


class Addresses(Protocol):
    """Safe from any thread."""

    def resolve(self, address: ChunkAddress) -> AddressedChunks:
        """Raises AddressError where the shape of the chunks is not known, or the tokens are none."""
