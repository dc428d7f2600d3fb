"""Token ids between their wire form, a msgpack array of integers, and the form that is hashed: 4 bytes each, big-endian.

Engines send the whole sequence with every request about it, and it can be long (131,072 tokens take 540 KB and about
5 ms to decode), so `TokenRun.follow` decodes only what the previous request of the session did not have.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from lmcache_core.model.errors import ProtocolError

TOKEN_BYTES: Final = 4

_NIL: Final = 0xC0
_decode_integers = msgspec.msgpack.Decoder(list[int]).decode
_skip = msgspec.msgpack.Decoder(msgspec.Raw).decode

if array("I").itemsize != TOKEN_BYTES:
    raise AssertionError("array('I') does not hold 4-byte integers on this platform")


@dataclass(frozen=True, slots=True)
class TokenRun:
    """The tokens of one sequence in both forms."""

    tokens: bytes
    """4 bytes per token, big-endian: what the hash chain takes."""
    encoded: bytes
    """The msgpack integers alone, without the header of their array."""

    @property
    def count(self) -> int:
        return len(self.tokens) // TOKEN_BYTES

    def follow(self, raw: msgspec.Raw | bytes, max_tokens: int) -> TokenRun:
        """Decode the next sequence of a session.  Where one sequence starts with the other, which is the rule, the
        common part is compared as bytes and not decoded again; otherwise the same as `decode_tokens`."""
        count, encoded = _split(raw, max_tokens)
        if count == self.count and encoded == self.encoded:
            return self
        if count > self.count and encoded.startswith(self.encoded):
            tail = _big_endian(count - self.count, encoded[len(self.encoded) :])
            return TokenRun(self.tokens + tail, encoded)
        if count < self.count and self.encoded.startswith(encoded) and _has_elements(count, encoded):
            return TokenRun(self.tokens[: count * TOKEN_BYTES], encoded)
        return TokenRun(_big_endian(count, encoded), encoded)


def decode_tokens(raw: msgspec.Raw | bytes, max_tokens: int) -> TokenRun:
    """Read a msgpack array of at most `max_tokens` integers, each 0 to 2**32 - 1.  Raises ProtocolError.

    Holds the GIL, about 45 ns per token."""
    count, encoded = _split(raw, max_tokens)
    return TokenRun(_big_endian(count, encoded), encoded)


def encode_tokens(tokens: Iterable[int]) -> msgspec.Raw:
    """The wire form of `tokens`, to be put into an EngineKey."""
    return msgspec.Raw(msgspec.msgpack.encode(list(tokens)))


def _split(raw: msgspec.Raw | bytes, max_tokens: int) -> tuple[int, bytes]:
    """Number of elements that the array header claims, and everything behind the header."""
    data = memoryview(raw)
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
    if count > max_tokens:
        raise ProtocolError(
            f"token_ids: {count} tokens, more than the {max_tokens} that this server takes in a request"
        )
    return count, bytes(data[header:])


def _array(count: int, encoded: bytes) -> bytes:
    return b"\xdd" + count.to_bytes(4, "big") + encoded


def _has_elements(count: int, encoded: bytes) -> bool:
    """Does the header tell the truth?  Skipping is several times cheaper than decoding."""
    try:
        _skip(_array(count, encoded))
    except (ValueError, RecursionError):
        return False
    return True


def _big_endian(count: int, encoded: bytes) -> bytes:
    try:
        words = array("I", _decode_integers(_array(count, encoded)))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"token_ids: {error}") from None
    except OverflowError:
        raise ProtocolError("token_ids: a token is below 0 or above 4294967295") from None
    if sys.byteorder == "little":
        words.byteswap()
    return words.tobytes()
