"""How an object that is longer than a value may be is kept in several.

    <name>                  the first piece: header page, and as much of the payload as fits
    <name>.<tag>.<number>   the others, 1 and on, each as long as the first but the last one

The tag comes out of the header page, so pieces of two objects are never mixed, even if several servers write at the same
time.  The first piece is written last.  Until it is there, the others have an end: what a server that was killed left behind
goes by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, Self

from lmcache_core import HEADER_BYTES

TAG_BYTES: Final = 8


def tag_of(page: bytes | memoryview) -> str:
    """Of a whole header page: the end of its digest."""
    return bytes(page[HEADER_BYTES - TAG_BYTES : HEADER_BYTES]).hex()


class PieceName(NamedTuple):
    """The name of a piece that is not the first, in its parts."""

    name: str
    tag: str
    number: int

    @classmethod
    def of(cls, text: str) -> Self | None:
        """None: it is not such a name."""
        name, _, rest = text.partition(".kv.")
        tag, _, number = rest.partition(".")
        is_one = (
            len(tag) == 2 * TAG_BYTES and set(tag) <= set("0123456789abcdef") and number.isascii() and number.isdigit()
        )
        return cls(f"{name}.kv", tag, int(number)) if is_one else None


class Piece(NamedTuple):
    name: bytes
    start: int
    end: int


def further_pieces(name: bytes, page: bytes | memoryview, total: int, piece_bytes: int) -> Iterator[Piece]:
    """All but the first of an object of `total` bytes."""
    tag = tag_of(page).encode()
    for number, start in enumerate(range(piece_bytes, total, piece_bytes), 1):
        yield Piece(b"%b.%b.%d" % (name, tag, number), start, min(start + piece_bytes, total))
