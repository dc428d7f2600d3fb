"""Chunks by their tokens, within a bound.

A window of a prompt has a rolling hash: a polynomial of its tokens at a random place, modulo a prime.  What has the hash of an
indexed chunk is compared by a keyed digest of 128 bits, so that a match is a match.
"""

from __future__ import annotations

import secrets
import sys
from array import array
from collections.abc import Callable, Hashable, Sequence
from importlib import import_module
from typing import Final, Literal, NamedTuple

from lmcache_blend_index.table import PRIME, ChunkTable, PureChunkTable
from lmcache_client.hash_chain import ReadPrompt, read_prompt

_SPACES_MAX: Final = 2**16 - 1
CHUNK_TABLE_ABI: Final = 1
"""The interface that is spoken here; another one is not used."""


class Match(NamedTuple):
    """A window of a prompt has the tokens of an indexed chunk."""

    start: int
    """Of the window."""
    hash: bytes
    """Of the chunk."""
    place: int
    """The chunk's number in the prompt that it was stored with."""
    parent: int
    """What `link` says of the chunk before it there; 0 for the first one."""
    entry: int
    """From 1 to `chunks_max`: a number that no other chunk has meanwhile."""
    is_missed: bool
    """It was not there when it was looked for last."""


def link(chunk_hash: bytes) -> int:
    """A short form of a chunk's hash, by which the next one refers to it."""
    return int.from_bytes(chunk_hash[:8], "little")


class Implementation(NamedTuple):
    native: bool
    """Is it the compiled one?"""
    table: Callable[[int, int, int, bytes], ChunkTable]
    """Makes one, of chunk_tokens, chunks_max, a multiplier below the prime, and a key of 32 bytes."""
    read_prompt: ReadPrompt


PURE: Final = Implementation(False, PureChunkTable, read_prompt)


def choose(native: Literal["auto", "on", "off"]) -> Implementation:
    """See `ChunkIndex`."""
    if native == "off":
        return PURE
    try:
        module = import_module("lmcache_native")
    except ImportError:
        module = None
    abi = getattr(module, "CHUNK_TABLE_ABI", None)
    if module is not None and abi == CHUNK_TABLE_ABI:
        return Implementation(True, module.ChunkTable, module.read_prompt)
    if native == "auto":
        return PURE
    reason = "is not installed" if module is None else f"has tables of chunks of the kind {abi}, not {CHUNK_TABLE_ABI}"
    raise RuntimeError(f"lmcache-native {reason}; install the lmcache-native of this release, or do without it")


class ChunkIndex:
    """Chunks of any number of spaces; what is in one is not found in another.  Not synchronised.

    Of more than `chunks_max` chunks, the one that was added or found longest ago makes room; one that was looked for and was
    not there goes before all others."""

    def __init__(
        self,
        chunk_tokens: int,
        chunks_max: int,
        multiplier: int | None = None,
        native: Literal["auto", "on", "off"] = "auto",
    ) -> None:
        """`multiplier`: the place of the polynomial, drawn at random unless it is given.  `native`: `auto` uses lmcache-native
        where it is installed, `on` raises `RuntimeError` where it is not, `off` does without."""
        self.chunk_tokens = chunk_tokens
        self.chunks_max = chunks_max
        self.added = self.evicted = self.refused = 0
        """Entries since the start: added, forgotten for others, and not taken because there were too many spaces."""
        self.native, make_table, self._read_prompt = choose(native)
        place = 2**32 + secrets.randbelow(PRIME - 2**33) if multiplier is None else multiplier
        self._table = make_table(chunk_tokens, chunks_max, place, secrets.token_bytes(32))
        self._spaces: dict[Hashable, int] = {}
        self._space_names: dict[int, Hashable] = {}
        self._space_keys: list[int] = [0]
        self._space_counts: list[int] = [0]
        self._free_spaces: list[int] = []

    def __len__(self) -> int:
        return len(self._table)

    def __contains__(self, space: Hashable) -> bool:
        """Is anything of this space indexed?"""
        return space in self._spaces

    def decode(self, encoded: memoryview | bytes, count: int) -> array[int]:
        """Tokens that are `count` msgpack integers, in the form that is added and matched soonest.  Raises ValueError for
        anything but numbers from 0 to 2**32 - 1.  Any thread."""
        words = array("I", self._read_prompt(encoded, 0, count, 1, b"", b"")[2])
        if sys.byteorder == "little":
            words.byteswap()
        return words

    def add(self, space: Hashable, tokens: Sequence[int], chunk_hash: bytes, place: int, parent: int) -> bool:
        """The chunk with these tokens, `chunk_tokens` of them below 2**32, is stored.  False where it was indexed already, and
        where it cannot be.  Raises ValueError or OverflowError for other tokens, and for a hash that has not 32 bytes."""
        number = self._spaces.get(space) or self._free_number()
        if not number:
            self.refused += 1
            return False
        lost = self._table.add(number, self._space_keys[number], tokens, chunk_hash, place, parent)
        if lost < 0:
            return False
        if space not in self._spaces:
            self._free_spaces.pop()
            self._spaces[space], self._space_names[number] = number, space
        self._space_counts[number] += 1  # first: the one that makes room may be the last of this space
        if lost:
            self._close_space(lost)
            self.evicted += 1
        self.added += 1
        return True

    def match(self, space: Hashable, tokens: Sequence[int], stride: int = 1) -> list[Match]:
        """All windows of the prompt that begin at a multiple of `stride` or where another match ends, and have the tokens of
        a chunk: ascending, and up to ALIKE_MAX with one start.  Of the former that overlap and have the same tokens, as in a
        run of one token, the first one counts.  The end of a prompt is left out where there are more than MATCHES_MAX per
        chunk.

        Compiled, about 0.03 us per token without the GIL, for a buffer of uint32, and 0.01 us more with it for other
        sequences; in Python 0.5 us, with the GIL."""
        number = self._spaces.get(space, 0)
        if not number:
            return []
        return [Match._make(each) for each in self._table.match(number, self._space_keys[number], tokens, stride)]

    def find(self, space: Hashable, tokens: Sequence[int], chunk_hash: bytes) -> Match | None:
        """The entry of this very chunk, if these are its tokens."""
        if len(tokens) != self.chunk_tokens:
            return None
        return next((each for each in self.match(space, tokens) if each.hash == chunk_hash), None)

    def note(self, match: Match, *, is_there: bool) -> None:
        """It was looked for, and was there or not.  Nothing where another chunk has its entry meanwhile."""
        self._table.note(match.entry, match.hash, is_there)

    # --- spaces

    def _free_number(self) -> int:
        """The number of the next space; 0 where there are too many."""
        if not self._free_spaces:
            number = len(self._space_keys)
            if number > _SPACES_MAX:
                return 0
            self._space_keys.append(secrets.randbits(61))
            self._space_counts.append(0)
            self._free_spaces.append(number)
        return self._free_spaces[-1]

    def _close_space(self, number: int) -> None:
        """One of its entries is gone."""
        self._space_counts[number] -= 1
        if not self._space_counts[number]:
            del self._spaces[self._space_names.pop(number)]
            self._free_spaces.append(number)
