"""Prompts that a server has chunks of and has never read.

A server may remember the bytes of the prompts that it has read, so a prompt that it knows and one that it does not are two
cases, and a measurement must choose one.  Msgpack can write a small number in four ways, and the first tokens of these
prompts are small: stored in another `spelling`, the chunks are there, and the prompt as engines write it is still new.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

CHUNK_TOKENS: Final = 256
VOCABULARY: Final = 128_000
_LEAD_TOKENS: Final = 12
_SMALL: Final = 128
_WAYS: Final = 4
SPELLINGS: Final = _WAYS**_LEAD_TOKENS
ANOTHER: Final = 1 + SPELLINGS // 3
"""A spelling that engines do not use."""
_HEADER_BYTES: Final = 5


def _spelled(token: int, way: int) -> bytes:
    """As one byte, which takes tokens below 128, or as an unsigned integer of 1, 2 or 4 bytes behind its type."""
    return bytes([token]) if way == 0 else bytes([0xCB + way]) + token.to_bytes(1 << (way - 1), "big")


class Prompt:
    """Random tokens, the same for the same seed, as the msgpack arrays that engines send."""

    def __init__(self, chunks: int, seed: int) -> None:
        self.chunks = chunks
        rng = np.random.default_rng(seed)
        self._lead: list[int] = rng.integers(0, _SMALL, _LEAD_TOKENS).tolist()
        rest: list[int] = rng.integers(0, VOCABULARY, chunks * CHUNK_TOKENS - _LEAD_TOKENS).tolist()
        self._rest = b"".join(map(msgspec.msgpack.encode, rest))
        sizes = np.array([1 if token < 128 else 2 if token < 256 else 3 if token < 65536 else 5 for token in rest])
        self._ends = np.cumsum(sizes)

    def token_ids(self, spelling: int = 0, chunks: int | None = None) -> msgspec.Raw:
        """The first `chunks` chunks, all without; `spelling` is below SPELLINGS, and 0 is how engines write them."""
        lead = b""
        for token in self._lead:
            spelling, way = divmod(spelling, _WAYS)
            lead += _spelled(token, way)
        return self._array(lead, self.chunks if chunks is None else chunks)

    def another(self, number: int) -> msgspec.Raw:
        """A prompt with another first token for each number below 2**31, so that it shares no chunk with any other."""
        first = _spelled(VOCABULARY + number, _WAYS - 1)
        return self._array(first + bytes(self._lead[1:]), self.chunks)

    def _array(self, lead: bytes, chunks: int) -> msgspec.Raw:
        count = chunks * CHUNK_TOKENS
        header = b"\xdd" + count.to_bytes(_HEADER_BYTES - 1, "big")
        return msgspec.Raw(header + lead + self._rest[: int(self._ends[count - _LEAD_TOKENS - 1])])
