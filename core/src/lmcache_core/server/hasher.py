"""Chunk hashes of the token sequences that engines send."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lmcache_client.errors import ProtocolError
from lmcache_client.hash_chain import Blake3Chain, Chain, Sha256CborChain
from lmcache_client.tokens import NOTHING_KNOWN, KnownPrefix, TokenSequence, encode_tokens
from lmcache_core.contracts.request_module import TokenIds
from lmcache_core.kernels.choice import Kernels
from lmcache_core.model.keys import HashChain
from lmcache_core.server.prompt_memory import PromptMemory


class PromptHasher:
    """Implements `contracts.request_module.ChunkHasher`: only what the memory does not know is decoded and hashed.

    Safe from any thread."""

    def __init__(self, chain: Chain, memory: PromptMemory) -> None:
        self._chain = chain
        self._memory = memory

    def chunk_hashes(self, request_id: str, token_ids: TokenIds | msgspec.Raw, end: int) -> Sequence[bytes]:
        if isinstance(token_ids, TokenSequence):
            tokens = token_ids
            hashes = self._hashes(tokens)
        else:
            tokens = _sequence(token_ids)
            hashes, _ = self._read(tokens, NOTHING_KNOWN)
        if not 0 <= end <= tokens.count:
            raise ProtocolError(f"end is {end}, but there are {tokens.count} token_ids")
        return hashes[: end // self._chain.chunk_tokens]

    def end_session(self, request_id: str) -> None:
        """What a request's prompt is known by stays: the next turn of its conversation begins with it."""

    def _hashes(self, tokens: TokenSequence) -> Sequence[bytes]:
        """Of all whole chunks of a tenant's prompt."""
        chunks = tokens.count // self._chain.chunk_tokens
        known = tokens.known
        if known is None:
            known = self._memory.find(tokens.cache_salt, tokens.encoded, chunks)
        if known.same >= len(tokens.encoded) and len(known.hashes) == chunks:
            return known.hashes
        new, ends = self._read(tokens, known)
        if not new:
            return known.hashes
        hashes = [*known.hashes, *new]
        self._memory.remember(tokens, hashes, ends)
        return hashes

    def _read(self, tokens: TokenSequence, known: KnownPrefix) -> tuple[list[bytes], list[int]]:
        """Hashes and ends of the chunks that are not known."""
        left = tokens.count - len(known.hashes) * self._chain.chunk_tokens
        try:
            hashes, ends, _ = self._chain.extend(known.hashes, tokens.encoded, known.end, left)
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            if known.hashes:
                return self._read(tokens, NOTHING_KNOWN)  # so that the error tells the place from the first token on
            raise ProtocolError(f"token_ids: {error}") from None
        return hashes, ends


def _sequence(token_ids: TokenIds | msgspec.Raw) -> TokenSequence:
    return TokenSequence.of(token_ids if isinstance(token_ids, msgspec.Raw) else encode_tokens(token_ids.decode()))


def open_chain(kind: HashChain, chunk_tokens: int, seed: str, kernels: Kernels) -> Chain:
    """The seed is for sha256_cbor, the kernels are for blake3."""
    if kind is HashChain.BLAKE3:
        return Blake3Chain(chunk_tokens, kernels.read_prompt, kernels.native)
    return Sha256CborChain(chunk_tokens, seed)
