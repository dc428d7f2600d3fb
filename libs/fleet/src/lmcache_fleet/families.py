"""Families of chunk hashes: one chunk size, and one hash chain with one seed.  Only hashes of one family can be compared."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from lmcache_client.errors import ProtocolError
from lmcache_client.hash_chain import Blake3Chain, Chain, ReadPrompt, Sha256CborChain, read_prompt
from lmcache_core import HashChain, KeySpace

_SEED_VARIABLE: Final = "PYTHONHASHSEED"
_SEED: Final = "vllm-none-hash"
"""Of servers without that variable."""


class Family(NamedTuple):
    """What chunk hashes have in common that can be compared."""

    chunk_tokens: int
    chain: HashChain

    @classmethod
    def of(cls, space: KeySpace) -> Family:
        return cls(space.chunk_tokens, space.chain)

    def __str__(self) -> str:
        return f"{self.chain.name.lower()}/{self.chunk_tokens}"


def chunk_hashes(family: Family, tokens: Sequence[int], parent: bytes = b"") -> bytes:
    """Of the whole chunks of a prompt, one behind the other.  `parent`: hash of the chunk in front of them; empty: they are the
    first.  Raises ProtocolError."""
    chain = _chain(family, os.environ.get(_SEED_VARIABLE, _SEED))
    header = 1 if len(tokens) <= 15 else 3 if len(tokens) <= 65535 else 5
    try:
        encoded = msgspec.msgpack.encode(tokens)
        hashes, _, _ = chain.extend((parent,) if parent else (), memoryview(encoded)[header:], 0, len(tokens))
    except (ValueError, OverflowError) as error:
        raise ProtocolError(f"token_ids: {error}") from None
    return b"".join(hashes)


@lru_cache(64)
def vector_of(family: Family) -> str:
    """The hash of a chunk of the tokens 0, 1, 2 and so on, in hex.  Two parties with the same one name chunks alike."""
    return chunk_hashes(family, list(range(family.chunk_tokens))).hex()


@lru_cache(64)
def _chain(family: Family, seed: str) -> Chain:
    if family.chain is HashChain.SHA256_CBOR:
        return Sha256CborChain(family.chunk_tokens, seed)
    return Blake3Chain(family.chunk_tokens, *_read_prompt())


def _read_prompt() -> tuple[ReadPrompt, bool]:
    try:
        from lmcache_native import read_prompt as compiled
    except ImportError:
        return read_prompt, False
    return compiled, True
