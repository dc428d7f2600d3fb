"""The hash chains of the engine protocol (docs/engine-protocol.md, "Chunk hashes").

A chain covers the tokens from the first one on, so that equal prefixes, and only they, have equal hashes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final, Protocol

import cbor2
import msgspec
from blake3 import blake3

from lmcache_core.kernels.choice import Kernels
from lmcache_core.kernels.interfaces import ReadPrompt
from lmcache_core.kernels.prompt import integer_offsets
from lmcache_core.model.keys import HashChain
from lmcache_core.wire.tokens import encode_header

TOKEN_MAX: Final = 2**32 - 1

_decode_integers = msgspec.msgpack.Decoder(list[int]).decode


class Chain(Protocol):
    """Hashes of the chunks of a prompt."""

    @property
    def chunk_tokens(self) -> int: ...

    @property
    def swift(self) -> bool:
        """True: reading long prompts takes no hold of the GIL, and they need not end where the frame ends."""

    def extend(
        self, known: Sequence[bytes], encoded: memoryview, offset: int, count: int
    ) -> tuple[list[bytes], list[int], int]:
        """Read `count` integers at `encoded[offset]`, which follow the chunks whose hashes are known.

        Returns the hashes of the whole chunks that they make, the offsets in `encoded` behind these, and the offset
        behind the last integer.  Raises ValueError for anything but `count` token ids."""


class Blake3Chain:
    """blake3(previous hash + 4 bytes per token, big-endian)."""

    def __init__(self, chunk_tokens: int, read_prompt: ReadPrompt, swift: bool) -> None:
        self.chunk_tokens = chunk_tokens
        self.swift = swift
        self._read_prompt = read_prompt
        self._root = blake3(bytes(8) + bytes(4)).digest()

    def extend(
        self, known: Sequence[bytes], encoded: memoryview, offset: int, count: int
    ) -> tuple[list[bytes], list[int], int]:
        previous = known[-1] if known else self._root
        hashes, ends, _, end = self._read_prompt(encoded, offset, count, self.chunk_tokens, previous, b"")
        return hashes, [offset + each for each in ends] if offset else ends, end


class Sha256CborChain:
    """sha256 over the canonical CBOR of previous hash, tokens and null.  Integers must end where the frame ends."""

    swift: Final = False

    def __init__(self, chunk_tokens: int, seed: str) -> None:
        self.chunk_tokens = chunk_tokens
        self._root = hashlib.sha256(cbor2.dumps(seed, canonical=True)).digest()

    def extend(
        self, known: Sequence[bytes], encoded: memoryview, offset: int, count: int
    ) -> tuple[list[bytes], list[int], int]:
        tokens = _decode_integers(encode_header(count) + encoded[offset:])
        if tokens and (min(tokens) < 0 or max(tokens) > TOKEN_MAX):
            raise ValueError(f"a token is below 0 or above {TOKEN_MAX}")
        previous = known[-1] if known else self._root
        bounds = range(self.chunk_tokens, len(tokens) + 1, self.chunk_tokens)
        hashes = []
        for end in bounds:
            chunk = tokens[end - self.chunk_tokens : end]
            previous = hashlib.sha256(cbor2.dumps([previous, chunk, None], canonical=True)).digest()
            hashes.append(previous)
        ends = integer_offsets(encoded[offset:], tokens, bounds)
        return hashes, [offset + each for each in ends], len(encoded)


def open_chain(kind: HashChain, chunk_tokens: int, seed: str, kernels: Kernels) -> Chain:
    """The seed is for sha256_cbor, the kernels are for blake3."""
    if kind is HashChain.BLAKE3:
        return Blake3Chain(chunk_tokens, kernels.read_prompt, kernels.native)
    return Sha256CborChain(chunk_tokens, seed)
