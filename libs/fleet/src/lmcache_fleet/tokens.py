"""Pages of the type `tokens`: which tokens the chunks of a member have, for views that find chunks by their tokens.

A page names chunks as other pages do, and has a record for each in its `body`: the hash of the chunk before it, 32 bytes,
zeros where there is none; its number in the prompt, and its tokens, u32 each, little-endian.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from lmcache_client.errors import ProtocolError
from lmcache_core import KeySpace
from lmcache_fleet.messages import HASH_BYTES, JournalPage, Kind, Page, Run

TOKENS: Final = "tokens"
"""The type of these pages."""
KEPT_BYTES: Final = 128 << 20
"""Of tokens, in a journal: those of 131,072 chunks of 256."""
PAGE_BYTES: Final = 1 << 20
"""Of tokens, in one page."""
_NO_PARENT: Final = bytes(HASH_BYTES)
_PLACE: Final = struct.Struct("<I")


class ChunkTokens(NamedTuple):
    """A chunk, with its tokens."""

    space: KeySpace
    chunk_hash: bytes
    parent: bytes
    """The hash of the chunk before it; empty for the first one of a prompt."""
    place: int
    """Its number in the prompt."""
    tokens: bytes
    """u32 each, little-endian"""


class TokensJournal:
    """Chunks that one server has stored, numbered from 0 on: the latest ones.  Safe from any thread.

    What names a source of pages is as in a feed.  The source has no deletes: whether a chunk is still there, the feed of L1
    says."""

    name: Final = "l1.tokens"  # no adapter has such a name
    backend: Final = ""
    is_shared: Final = False
    epoch: Final = 0

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._lock = threading.Lock()
        self._kept = deque[ChunkTokens]()
        self._first = self._bytes = 0

    def add(self, chunk: ChunkTokens) -> None:
        with self._lock:
            self._kept.append(chunk)
            self._bytes += len(chunk.tokens)
            while self._bytes > self._kept_bytes:
                self._bytes -= len(self._kept.popleft().tokens)
                self._first += 1

    def read(self, first: int) -> tuple[int, Sequence[ChunkTokens]]:
        """The chunks of one page, from this number on, or from the oldest that is kept.  Their first number comes with them."""
        with self._lock:
            first = max(first, self._first)
            found, size = list[ChunkTokens](), 0
            for chunk in islice(self._kept, first - self._first, None):
                size += len(chunk.tokens)
                if size > PAGE_BYTES and found:
                    break
                found.append(chunk)
            return first, found


JOURNALS: Final[dict[str, TokensJournal]] = {}
"""Of the servers of this process, by boot id: who keeps one puts it here, and the member sends it to coordinators that ask."""


def tokens_page(about: dict[str, Any], first: int, chunks: Sequence[ChunkTokens]) -> JournalPage:
    """`about`: the fields of a page that say whose it is."""
    spaces: dict[bytes, int] = {}
    runs = [Run(Kind.STORE, spaces.setdefault(each.space.tail, len(spaces)), 0, each.chunk_hash) for each in chunks]
    body = b"".join([(each.parent or _NO_PARENT) + _PLACE.pack(each.place) + each.tokens for each in chunks])
    return JournalPage(**about, content=TOKENS, spaces=tuple(spaces), runs=tuple(runs), body=body, first=first)


def tokens_in(page: Page, skip: int, chunk_tokens: int) -> Iterator[ChunkTokens]:
    """The chunks of a page, without its first `skip`.  Raises ProtocolError where they are not of this size."""
    head = HASH_BYTES + _PLACE.size
    size = head + 4 * chunk_tokens
    if len(page.body) != size * page.keys:
        raise ProtocolError(
            f"a page of {page.keys} chunks has {len(page.body)} bytes of tokens; with {chunk_tokens} tokens in a chunk it has "
            f"{size * page.keys}"
        )
    at = 0
    for run in page.runs:
        for chunk_hash in run.split():
            if at >= skip:
                record = page.body[at * size : (at + 1) * size]
                parent, (place,) = record[:HASH_BYTES], _PLACE.unpack_from(record, HASH_BYTES)
                parent = b"" if parent == _NO_PARENT else parent
                yield ChunkTokens(page.key_spaces[run.space], chunk_hash, parent, place, record[head:])
            at += 1
