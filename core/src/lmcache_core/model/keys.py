"""Object keys, version 1: every field is identity (docs/internals/object-format.md, "Object key")."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Final, NamedTuple

from blake3 import blake3

from lmcache_client.errors import ConfigError, ProtocolError

HASH_BYTES = 32
LAYOUT_BYTES = 16
CANONICAL_MAX_BYTES = 2048
"""Bytes of the header page for the canonical key; a registration whose key would not fit is refused."""

SPACES_KEPT = 256
"""Spaces that were read from keys last; each takes at most about 10 KiB."""

RANKS_KEPT = 1024
"""Shard numbers that were packed last."""

SLUG_CHARACTERS: Final = 48
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_U16 = struct.Struct("<H")
_RANK_AND_GROUP = struct.Struct("<IH")
_TOKENS_AND_CHAIN = struct.Struct("<IB")


class HashChain(IntEnum):
    """How chunk hashes follow from tokens; keys and headers contain the number."""

    BLAKE3 = 1
    SHA256_CBOR = 2
    EXTERNAL = 3
    """Hashes of others; which ones, the model name says (docs/internals/object-format.md, "Object key")."""

    @classmethod
    def named(cls, name: str) -> HashChain:
        own = {chain.name.lower(): chain for chain in (cls.BLAKE3, cls.SHA256_CBOR)}
        if name.lower() not in own:
            raise ConfigError(
                f"hash_algorithm: '{name}' is not a hash chain of this server; use one of: {', '.join(own)}"
            )
        return own[name.lower()]


def _text(value: str) -> bytes:
    data = value.encode()
    return _U16.pack(len(data)) + data


@dataclass(frozen=True, slots=True)
class KeySpace:
    """Everything of an object's identity but the chunk hash: one space holds the chunks of one shard of one model
    for one tenant in one geometry.  Spaces are few and long-lived; chunks are many."""

    model_name: str
    kv_rank: int
    object_group: int
    cache_salt: str
    chunk_tokens: int
    chain: HashChain
    layout: bytes
    tail: bytes = field(init=False, compare=False, repr=False)
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.layout) != LAYOUT_BYTES:
            raise ValueError(f"a layout fingerprint has {LAYOUT_BYTES} bytes, not {len(self.layout)}")
        tail = b"".join(
            (
                _text(self.model_name),
                _RANK_AND_GROUP.pack(self.kv_rank, self.object_group),
                _text(self.cache_salt),
                _TOKENS_AND_CHAIN.pack(self.chunk_tokens, self.chain),
                self.layout,
            )
        )
        if HASH_BYTES + len(tail) > CANONICAL_MAX_BYTES:
            raise ValueError(
                f"the key of model '{self.model_name[:40]}...' takes {HASH_BYTES + len(tail)} bytes, "
                f"more than the {CANONICAL_MAX_BYTES} that an object header holds; use a shorter model name or salt"
            )
        object.__setattr__(self, "tail", tail)
        object.__setattr__(self, "_hash", hash(tail))

    def __hash__(self) -> int:
        # Asked several times per request; hashing seven fields each time is what a small request would mostly cost.
        return self._hash


class ObjectKey(NamedTuple):
    """Names one stored object: one chunk of one shard."""

    space: KeySpace
    chunk_hash: bytes

    @property
    def canonical(self) -> bytes:
        """The key as bytes, in the order and encoding of docs/internals/object-format.md."""
        return self.chunk_hash + self.space.tail

    @property
    def object_id(self) -> bytes:
        """16 bytes that name the object where a short name is needed (files, object stores)."""
        return blake3(self.chunk_hash + self.space.tail).digest(16)


def parse_canonical(data: bytes) -> ObjectKey:
    """Read a canonical key back.  Raises ProtocolError when `data` is not exactly one key."""
    return ObjectKey(_parse_tail(data[HASH_BYTES:]), data[:HASH_BYTES])


@lru_cache(SPACES_KEPT)
def _parse_tail(data: bytes) -> KeySpace:
    """The part of a key behind the chunk hash.  A million keys have the same few spaces."""
    try:
        (size,) = _U16.unpack_from(data)
        model_name = data[2 : 2 + size].decode()
        at = 2 + size
        kv_rank, object_group = _RANK_AND_GROUP.unpack_from(data, at)
        at += _RANK_AND_GROUP.size
        (size,) = _U16.unpack_from(data, at)
        cache_salt = data[at + 2 : at + 2 + size].decode()
        at += 2 + size
        chunk_tokens, chain = _TOKENS_AND_CHAIN.unpack_from(data, at)
        at += _TOKENS_AND_CHAIN.size
        layout = data[at : at + LAYOUT_BYTES]
        space = KeySpace(model_name, kv_rank, object_group, cache_salt, chunk_tokens, HashChain(chain), layout)
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise ProtocolError(f"not a canonical object key: {error}") from None
    if len(data) != len(space.tail):
        raise ProtocolError(
            f"not a canonical object key: {HASH_BYTES + len(data)} bytes where {HASH_BYTES + len(space.tail)} belong"
        )
    return space


@lru_cache(RANKS_KEPT)
def pack_kv_rank(world_size: int, worker_id: int) -> int:
    """The shard number of worker `worker_id` of `world_size`: four fields of 8 bits (protocol: global and local are
    the same in multiprocess mode).  Raises ProtocolError when a field does not fit."""
    if not (1 <= world_size <= 255 and 0 <= worker_id < world_size):
        raise ProtocolError(
            f"worker {worker_id} of {world_size}: the world size must be 1 to 255 and the worker below it"
        )
    return world_size << 24 | worker_id << 16 | world_size << 8 | worker_id


def media_path(key: ObjectKey) -> str:
    """`<model slug>-<8 hex>/<salt slug>-<8 hex>/<aa>/<object id>.kv`: relative, with `/`, of safe characters only.

    The slugs are for people and the hex digits after them tell names apart that look alike; the header is the truth."""
    object_id = key.object_id.hex()
    return f"{_slug(key.space.model_name)}/{_slug(key.space.cache_salt)}/{object_id[:2]}/{object_id}.kv"


def _slug(text: str) -> str:
    # No leading dot: such names belong to the adapters (.tmp, .lock, .damaged).
    readable = _UNSAFE.sub("-", text).lstrip(".-")[:SLUG_CHARACTERS] or "none"
    return f"{readable}-{blake3(text.encode()).digest(4).hex()}"
