"""What an owner says of its memory, and the table in which it publishes the keys of what it has registered since.

L1 grows, and only what is in use may be registered: registration can make every page real.  So it is registered in pieces,
and a description that was given before cannot have the keys of a later piece.  They are in a table, which is registered from
the start and in the description: a slot for each piece, behind one that has a mark for as long as the owner's channel is open.
Readers read slots as they read everything else.  A slot is signed, since NIXL parses what is in it."""

from __future__ import annotations

import hmac
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from lmcache_core import LMCacheError, RemoteRead

PIECE_BYTES: Final = 64 << 20
SLOT_BYTES: Final = 2048
MARK_BYTES: Final = 32
DESCRIPTION_BYTES_MAX: Final = 4096
_HEAD: Final = struct.Struct("<I32s")
_NUMBER: Final = struct.Struct("<Q")


class Description(msgspec.Struct, frozen=True):
    agent: bytes
    """How to connect, and the keys of the table.  NIXL parses it."""
    address: int
    """Of the region, in the owner."""
    length: int
    piece_bytes: int
    table: int
    """Address of the table."""
    mark: bytes
    """What is at the table's beginning while the channel is open."""
    secret: bytes
    """Signs the slots."""

    @classmethod
    def read(cls, data: bytes) -> Description:
        """Raises LMCacheError."""
        try:
            found = msgspec.msgpack.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise LMCacheError(f"not a description of a nixl channel: {error}") from None
        if found.piece_bytes <= 0 or len(found.mark) != MARK_BYTES:
            raise LMCacheError("not a description of a nixl channel: pieces or mark are of a wrong size")
        return found

    def slot(self, piece: int) -> int:
        """Address of the slot of a piece."""
        return self.table + (piece + 1) * SLOT_BYTES


def packed(secret: bytes, piece: int, keys: bytes) -> bytes:
    """The content of a slot.  Raises ValueError where the keys are too many."""
    if len(keys) > SLOT_BYTES - _HEAD.size:
        raise ValueError(f"keys of {len(keys)} bytes do not fit into a slot")
    return _HEAD.pack(len(keys), _signature(secret, piece, keys)) + keys


def unpacked(secret: bytes, piece: int, slot: bytes) -> bytes | None:
    """The keys of a piece.  None: it was not registered yet, or the slot was read while it was written."""
    length, signature = _HEAD.unpack_from(slot)
    keys = slot[_HEAD.size : _HEAD.size + length]
    return keys if length and hmac.compare_digest(signature, _signature(secret, piece, keys)) else None


def _signature(secret: bytes, piece: int, keys: bytes) -> bytes:
    return hmac.digest(secret, _NUMBER.pack(piece) + keys, "sha256")


def pieces_of(offset: int, length: int, piece_bytes: int) -> range:
    """Numbers of the pieces that these bytes lie in."""
    return range(offset // piece_bytes, -(-(offset + length) // piece_bytes))


class Span(NamedTuple):
    """A part of a read that lies in one piece on either side."""

    own: int
    remote: int
    length: int


def spans(read: RemoteRead, own_piece: int, remote_piece: int) -> Iterator[Span]:
    own, remote, left = read.buffer.offset, read.offset, read.buffer.length
    while left:
        length = min(left, own_piece - own % own_piece, remote_piece - remote % remote_piece)
        yield Span(own, remote, length)
        own, remote, left = own + length, remote + length, left - length
