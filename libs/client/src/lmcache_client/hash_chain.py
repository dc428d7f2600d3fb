"""Chunk hashes of prompts: the hash chains of the engine protocol (docs/internals/engine-protocol.md, "Chunk hashes").

A chain covers the tokens from the first one on, so that equal prefixes, and only they, have equal hashes.  The last chunk may
be a tail, which ends with padding: its hash is over the tokens that are there.  Prompts are read in their wire form, a run of
msgpack integers.  `read_prompt` is the pure implementation of what lmcache-native offers under the same name.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final, Protocol

import cbor2
import msgspec
from blake3 import blake3

from lmcache_client.engine_key import PADDING, encode_header

TOKEN_BYTES: Final = 4
"""Of a token where it is hashed, big-endian."""
TOKEN_MAX: Final = 2**32 - 1
_PADDED: Final = PADDING.to_bytes(TOKEN_BYTES, "big")
"""What padding ends with in every form that msgpack has for it."""

_SIZES: Final = bytes(
    {0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9}.get(lead, 0) if 0x80 <= lead < 0xE0 else 1
    for lead in range(256)
)
"""Bytes of an integer by its first one; 0 for what is not an integer."""

_decode_integers = msgspec.msgpack.Decoder(list[int]).decode
_encode = msgspec.msgpack.Encoder().encode

if array("I").itemsize != TOKEN_BYTES:
    raise AssertionError("array('I') does not hold 4-byte integers on this platform")


def read_prompt(
    frame: bytes | memoryview, offset: int, count: int, chunk_tokens: int, previous: bytes, carry: bytes
) -> tuple[list[bytes], list[int], bytes, int]:
    """Decode `count` integers at `frame[offset]`, and hash the whole chunks that they make behind `carry`, the tokens of
    an unfinished chunk.  A chunk's hash is blake3(hash before it + tokens); before the first one it is `previous`.

    Returns the hashes; for each the offset, counted from `offset`, behind its last integer; the tokens left over; and
    the offset in `frame` behind the last integer.  With an empty `previous` nothing is hashed and all tokens are left
    over.  Raises ValueError for anything but `count` integers from 0 to 2**32 - 1.

    Fast where the last integer ends the frame; otherwise its end is searched integer by integer.  Holds the GIL, about
    50 ns per token."""
    encoded = memoryview(frame)[offset:]
    integers, size = _decode(encoded, count)
    try:
        words = array("I", integers)
    except OverflowError:
        raise ValueError("a token is below 0 or above 4294967295") from None
    if sys.byteorder == "little":
        words.byteswap()
    tokens = carry + words.tobytes()
    if not previous:
        return [], [], tokens, offset + size
    chunk_bytes = chunk_tokens * TOKEN_BYTES
    whole = len(tokens) // chunk_bytes * chunk_bytes
    view = memoryview(tokens)
    hashes = []
    for at in range(0, whole, chunk_bytes):
        previous = blake3(previous + view[at : at + chunk_bytes]).digest()
        hashes.append(previous)
    first = chunk_tokens - len(carry) // TOKEN_BYTES
    bounds = range(first, first + len(hashes) * chunk_tokens, chunk_tokens)
    return hashes, integer_offsets(encoded[:size], integers, bounds), tokens[whole:], offset + size


def _decode(encoded: memoryview, count: int) -> tuple[list[int], int]:
    """The integers, and how many bytes they take."""
    header = b"\xdd" + count.to_bytes(4, "big")
    try:
        return _decode_integers(header + encoded), len(encoded)
    except (ValueError, RecursionError) as error:
        sizes = _sizes(encoded, count)
        if sizes is None or sum(sizes) == len(encoded):
            raise ValueError(str(error)) from None
    size = sum(sizes)
    return _decode_integers(header + encoded[:size]), size


def integer_offsets(encoded: memoryview, integers: Sequence[int], bounds: range) -> list[int]:
    """Behind how many bytes of `encoded`, which are these integers, the first n of them end, for each n of `bounds`."""
    if not bounds:
        return []
    # Every integer takes at least the bytes of its shortest form, so that an equal sum says that all are in it.
    cuts = [0, *bounds, len(integers)]
    shortest = [len(_encode(piece)) - _header_bytes(len(piece)) for piece in (integers[a:b] for a, b in pairwise(cuts))]
    offsets = list(accumulate(shortest))
    if offsets[-1] == len(encoded):
        return offsets[:-1]
    sizes = _sizes(encoded, len(integers)) or bytearray()
    return list(accumulate(sum(sizes[a:b]) for a, b in pairwise(cuts[:-1])))


def _header_bytes(count: int) -> int:
    return 1 if count <= 15 else 3 if count <= 65535 else 5


def _sizes(encoded: memoryview, count: int) -> bytearray | None:
    """Bytes that each of `count` integers takes; None when fewer are there."""
    sizes: bytearray = bytearray()
    at, end = 0, len(encoded)
    while len(sizes) < count:
        size = _SIZES[encoded[at]] if at < end else 0
        if not size or at + size > end:
            return None
        sizes.append(size)
        at += size
    return sizes


def _there(chunk: list[int]) -> list[int]:
    """The tokens of a chunk without the padding at its end."""
    end = len(chunk)
    while end and chunk[end - 1] == PADDING:
        end -= 1
    return chunk[:end]


class ReadPrompt(Protocol):
    """Decodes and hashes the token ids of one prompt."""

    def __call__(
        self, frame: bytes | memoryview, offset: int, count: int, chunk_tokens: int, previous: bytes, carry: bytes
    ) -> tuple[list[bytes], list[int], bytes, int]:
        """Read `count` msgpack integers of 0 to 2**32 - 1 that start at `frame[offset]`.

        Tokens become 4 bytes each, big-endian.  `carry` are the tokens of an unfinished chunk in front of them.  Each
        whole chunk of `chunk_tokens` tokens is hashed as blake3(previous || chunk), and its digest is the next
        `previous`; with an empty `previous` nothing is hashed.

        Returns (hashes, offsets relative to `offset` just behind the last token of each hashed chunk, tokens of the
        unfinished rest, offset in the frame just behind the last integer).  Raises ValueError for a frame that ends too
        early and for anything that is not such an integer."""
        ...


class Chain(Protocol):
    """Hashes of the chunks of a prompt."""

    @property
    def chunk_tokens(self) -> int: ...

    @property
    def releases_gil(self) -> bool:
        """True: reading long prompts takes no hold of the GIL, and they need not end where the frame ends."""

    def extend(
        self, known: Sequence[bytes], encoded: memoryview, offset: int, count: int
    ) -> tuple[list[bytes], list[int], int]:
        """Read `count` integers at `encoded[offset]`, which follow the chunks whose hashes are known.

        Returns the hashes of the whole chunks that they make, the offsets in `encoded` behind these, and the offset
        behind the last integer.  Raises ValueError for anything but `count` token ids."""


class Blake3Chain:
    """blake3(previous hash + 4 bytes per token, big-endian)."""

    def __init__(self, chunk_tokens: int, read_prompt: ReadPrompt, releases_gil: bool) -> None:
        self.chunk_tokens = chunk_tokens
        self.releases_gil = releases_gil
        self._read_prompt = read_prompt
        self._root = blake3(bytes(8) + bytes(4)).digest()

    def extend(
        self, known: Sequence[bytes], encoded: memoryview, offset: int, count: int
    ) -> tuple[list[bytes], list[int], int]:
        previous = known[-1] if known else self._root
        hashes, ends, _, end = self._read_prompt(encoded, offset, count, self.chunk_tokens, previous, b"")
        ends = [offset + each for each in ends] if offset else ends
        if ends and encoded[ends[-1] - TOKEN_BYTES : ends[-1]] == _PADDED:
            begin = ends[-2] if len(ends) > 1 else offset
            tokens = _there(_decode_integers(encode_header(self.chunk_tokens) + encoded[begin : ends[-1]]))
            before = hashes[-2] if len(hashes) > 1 else previous
            hashes[-1] = blake3(before + b"".join([token.to_bytes(TOKEN_BYTES, "big") for token in tokens])).digest()
        return hashes, ends, end


class Sha256CborChain:
    """sha256 over the canonical CBOR of previous hash, tokens and null.  Integers must end where the frame ends."""

    releases_gil: Final = False

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
            if end == bounds[-1]:
                chunk = _there(chunk)
            previous = hashlib.sha256(cbor2.dumps([previous, chunk, None], canonical=True)).digest()
            hashes.append(previous)
        ends = integer_offsets(encoded[offset:], tokens, bounds)
        return hashes, [offset + each for each in ends], len(encoded)
