"""What servers say to each other: requests and answers in the frames of the engine protocol, over CurveZMQ.

A reader says hello once.  It asks for leases with `p2p_lookup_and_lock`, fetches where the objects lie with
`p2p_query_lookup_results`, renews, and ends them.  The bytes go through a transfer channel.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from lmcache_client.handoff import HANDOFF_SUBSCRIBE
from lmcache_core import HashChain, KeySpace, ObjectKey, Operation

VERSION: Final = 1
KEYS_MAX: Final = 16_384
"""Keys of one request."""
REQUEST_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of one frame: keys of 16,384 chunks with long names."""
NO_TASK: Final = -1
ABSENT: Final = -1
NOT_NOW: Final = -2
SECRET_BYTES: Final = 16


class PeerKey(msgspec.Struct, frozen=True):
    """An object key.  The last three are ours; the public protocol has the others."""

    chunk_hash: Annotated[bytes, Meta(min_length=32, max_length=32)]
    model_name: str
    kv_rank: int
    object_group_id: int = 0
    cache_salt: str = ""
    chunk_tokens: int = 0
    chain: int = 0
    layout: bytes = b""

    @classmethod
    def of(cls, key: ObjectKey) -> PeerKey:
        space = key.space
        return cls(
            key.chunk_hash,
            space.model_name,
            space.kv_rank,
            space.object_group,
            space.cache_salt,
            space.chunk_tokens,
            int(space.chain),
            space.layout,
        )


class PeerAddress(msgspec.Struct, frozen=True):
    """Where an object lies in the owner's region, header page included.  (-1, 0): it is not leased; (-2, 0): the owner has it,
    and may lease no more now."""

    offset: int
    size: int


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """What a server says of itself."""

    version: int = VERSION
    instance: str
    boot_id: str
    chunk_tokens: int
    chain: str
    test_vector: str
    lease_seconds: float = 15.0
    """Of a request: how long a lease is to be."""
    channels: dict[str, bytes] = {}
    """Descriptions, by name."""
    secret: bytes = b""
    """Of an answer: what the secrets of this session's leases are made from."""
    refused: str = ""
    """Of an answer: why the session was refused."""


LOOKUP_AND_LOCK: Final = Operation("p2p_lookup_and_lock", 29, (list[PeerKey], Any), int, NO_TASK)
QUERY_LOOKUP_RESULTS: Final = Operation("p2p_query_lookup_results", 30, (int,), list[PeerAddress] | None, [])
UNLOCK_OBJECTS: Final = Operation("p2p_unlock_objects", 31, (list[PeerKey],), None)
HELLO: Final = Operation("p2p_hello", None, (Hello,), Hello | None, None)
RENEW: Final = Operation("p2p_renew", None, (int,), bool, False)
END: Final = Operation("p2p_end", None, (int,), None)
OPERATIONS: Final = (
    LOOKUP_AND_LOCK,
    QUERY_LOOKUP_RESULTS,
    UNLOCK_OBJECTS,
    HELLO,
    RENEW,
    END,
    HANDOFF_SUBSCRIBE,
)


def lease_secret(session: bytes, task: int) -> bytes:
    """What a reader brings to a channel.  Both sides compute it."""
    return blake2b(task.to_bytes(8, "little"), digest_size=SECRET_BYTES, key=session).digest()


def object_keys(keys: Sequence[PeerKey]) -> list[ObjectKey | None]:
    """None for what is not a key of ours."""
    spaces: dict[tuple[Any, ...], KeySpace | None] = {}
    found: list[ObjectKey | None] = []
    for key in keys:
        fields = (
            key.model_name,
            key.kv_rank,
            key.object_group_id,
            key.cache_salt,
            key.chunk_tokens,
            key.chain,
            key.layout,
        )
        if fields not in spaces:
            spaces[fields] = _space(fields)
        space = spaces[fields]
        found.append(None if space is None else ObjectKey(space, key.chunk_hash))
    return found


def _space(fields: Iterable[Any]) -> KeySpace | None:
    model, rank, group, salt, tokens, chain, layout = fields
    try:
        return KeySpace(model, rank, group, salt, tokens, HashChain(chain), layout)
    except (ValueError, struct.error):  # a chain or layout that does not exist, a number that does not fit
        return None
