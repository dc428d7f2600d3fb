"""Token ids in their wire form, a msgpack array of integers.

Engines send the whole sequence with every request about it, and it can be long (131,072 tokens take 520 KB and 5 ms to
decode), so it stays encoded until a part that is not known yet is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from lmcache_client.errors import ProtocolError

MAX_TOKENS: Final = 16 << 20
"""Longest sequence that is taken from an engine."""

_NIL: Final = 0xC0


class KnownPrefix(NamedTuple):
    """As far as a sequence was there before."""

    hashes: Sequence[bytes]
    """Of its first chunks."""
    end: int
    """Offset in the integers behind the last of those chunks."""
    same: int
    """How many bytes of the integers were read before, and are token ids."""


NOTHING_KNOWN: Final = KnownPrefix((), 0, 0)


class TokenSequence:
    """The token ids of a request, as they came.  Never changed.

    The contents are not validated: that they are token ids is known once they were hashed or decoded."""

    __slots__ = ("cache_salt", "count", "encoded", "known")

    def __init__(self, count: int, encoded: memoryview, cache_salt: str = "", known: KnownPrefix | None = None) -> None:
        self.count = count
        """How many there are."""
        self.encoded = encoded
        """The msgpack integers alone, without the header of their array.  A view of the received frame, which it keeps
        alive."""
        self.cache_salt = cache_salt
        """The tenant: what is remembered of a sequence is for requests with the same salt."""
        self.known = known
        """None: not validated yet."""

    def __eq__(self, other: object) -> bool:
        """The same integers in the same form, wherever they came from."""
        if isinstance(other, msgspec.Raw):
            return bytes(self.array()) == bytes(other)
        if isinstance(other, TokenSequence):
            return self.count == other.count and bytes(self.encoded) == bytes(other.encoded)
        return NotImplemented

    def __hash__(self) -> int:
        return hash((self.count, bytes(self.encoded)))

    @classmethod
    def of(cls, array: msgspec.Raw | bytes | memoryview, cache_salt: str = "") -> TokenSequence:
        """The sequence in a msgpack array.  Raises ProtocolError unless it is an array that is not too long; that its
        elements are token ids is not looked at.  Takes about 5 ns per token."""
        data = memoryview(array)
        count, header = array_header(data)
        try:
            _skip(data)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"token_ids: {error}") from None
        return cls(count, data[header:], cache_salt)

    def array(self) -> msgspec.Raw:
        """A copy in its wire form, the shortest header before it."""
        return msgspec.Raw(encode_header(self.count) + self.encoded)

    def decode(self) -> list[int]:
        """The numbers.  Holds the GIL, about 35 ns per token.  Raises ProtocolError."""
        try:
            return _decode_integers(self.array())
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"token_ids: {error}") from None


_decode_integers = msgspec.msgpack.Decoder(list[int]).decode
_skip = msgspec.msgpack.Decoder(msgspec.Raw).decode


def encode_tokens(tokens: Iterable[int]) -> msgspec.Raw:
    """The wire form of `tokens`, to be put into an EngineKey."""
    return msgspec.Raw(msgspec.msgpack.encode(list(tokens)))


def array_header(data: memoryview) -> tuple[int, int]:
    """The number of elements that the header of an array claims, and the bytes of that header.  Raises ProtocolError."""
    lead = data[0] if data else _NIL
    if 0x90 <= lead <= 0x9F:
        count, header = lead & 0x0F, 1
    elif lead in (0xDC, 0xDD):
        header = 3 if lead == 0xDC else 5
        count = int.from_bytes(data[1:header], "big")
    else:
        raise ProtocolError(f"token_ids: expected an array of integers, got a value that starts with 0x{lead:02x}")
    if len(data) < header:
        raise ProtocolError("token_ids: Input data was truncated")
    if count > MAX_TOKENS:
        raise ProtocolError(
            f"token_ids: {count} tokens, more than the {MAX_TOKENS} that this server takes in a request"
        )
    return count, header


def encode_header(count: int) -> bytes:
    """The shortest header of an array."""
    if count <= 0x0F:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2, "big") if count <= 0xFFFF else b"\xdd" + count.to_bytes(4, "big")
