"""Chunks by their tokens, within a bound.

A window of a prompt has a rolling hash: a polynomial of its tokens at a random place, modulo a prime.  What has the hash of an
indexed chunk is compared by a keyed digest of 128 bits, so that a match is a match.  Everything of an entry is in flat arrays
that the garbage collector does not walk, at most 96 bytes per chunk, which take memory only once they are used.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Hashable, Iterator, Sequence
from functools import reduce
from itertools import accumulate
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Final, Literal, NamedTuple

from blake3 import blake3

_PRIME: Final = 2**61 - 1
_DIGEST_BYTES: Final = 16
_HASH_BYTES: Final = 32
_SPACES_MAX: Final = 2**16 - 1
ALIKE_MAX: Final = 2
"""Entries of one space with equal tokens: chunks that were stored behind different ones."""

MATCHES_MAX: Final = 8
"""Windows of a prompt that match, for each chunk that it has room for: each costs about 20 us."""


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
    is_missed: bool
    """It was not there when it was looked for last."""


def link(chunk_hash: bytes) -> int:
    """A short form of a chunk's hash, by which the next one refers to it."""
    return int.from_bytes(chunk_hash[:8], "little")


class ChunkIndex:
    """Chunks of any number of spaces; what is in one is not found in another.  Not synchronised.

    Of more than `chunks_max` chunks, the one that was added or found longest ago makes room; one that was looked for and was
    not there goes before all others."""

    def __init__(self, chunk_tokens: int, chunks_max: int, multiplier: int | None = None) -> None:
        """`multiplier`: the place of the polynomial, drawn at random unless it is given."""
        self.chunk_tokens = chunk_tokens
        self.chunks_max = chunks_max
        self.added = self.evicted = self.refused = 0
        """Entries since the start: added, forgotten for others, and not taken because there were too many spaces."""
        self._multiplier = 2**32 + secrets.randbelow(_PRIME - 2**33) if multiplier is None else multiplier
        self._top = pow(self._multiplier, chunk_tokens, _PRIME)
        self._key = secrets.token_bytes(32)
        self._used = 0
        # Entry 0 is none.  In the chain of all entries it comes before the oldest and behind the newest.
        entries = chunks_max + 1
        # 1.5 to 3 for each chunk.
        self._buckets = _zeros("I", 1 << (3 * chunks_max // 2).bit_length())
        self._mask = len(self._buckets) - 1
        self._next = _zeros("I", entries)
        self._fingerprints = _zeros("Q", entries)
        self._digests = _zeros("B", entries * _DIGEST_BYTES)
        self._hashes = _zeros("B", entries * _HASH_BYTES)
        self._parents = _zeros("Q", entries)
        self._places = _zeros("I", entries)
        self._older = _zeros("I", entries)
        self._newer = _zeros("I", entries)
        self._space_of = _zeros("H", entries)
        self._missed = _zeros("B", entries)
        self._spaces: dict[Hashable, int] = {}
        self._space_names: dict[int, Hashable] = {}
        self._space_keys: list[int] = [0]
        self._space_counts: list[int] = [0]
        self._free_spaces: list[int] = []

    def __len__(self) -> int:
        return self._used

    def __contains__(self, space: Hashable) -> bool:
        """Is anything of this space indexed?"""
        return space in self._spaces

    def add(self, space: Hashable, tokens: Sequence[int], chunk_hash: bytes, place: int, parent: int) -> bool:
        """The chunk with these tokens, `chunk_tokens` of them below 2**32, is stored.  False where it was indexed already, and
        where it cannot be."""
        fingerprint, digest = self._fingerprint(tokens), self._digest(_words(tokens))
        number = self._spaces.get(space) or self._open_space(space)
        if not number:
            self.refused += 1
            return False
        fingerprint ^= self._space_keys[number]
        alike = [each for each in self._find(number, fingerprint) if self._digest_of(each) == digest]
        for entry in alike:
            if self._hash_of(entry) == chunk_hash:
                self._missed[entry] = 0
                self._touch(entry)
                return False
        if len(alike) >= ALIKE_MAX:
            entry = next((each for each in alike if self._missed[each]), alike[-1])
        elif self._used < self.chunks_max:
            self._used += 1
            entry = self._used
        else:
            entry = self._newer[0]
        self._space_counts[number] += 1  # first: the one that makes room may be the last of this space
        if self._space_of[entry]:
            self._remove(entry)
        self._fill(entry, number, fingerprint, digest, chunk_hash)
        self._places[entry], self._parents[entry] = place, parent
        self.added += 1
        return True

    def match(self, space: Hashable, tokens: Sequence[int], stride: int = 1) -> list[Match]:
        """All windows of the prompt that begin at a multiple of `stride` or where another match ends, and have the tokens of
        a chunk: ascending, and up to ALIKE_MAX with one start.  Of the former that overlap and have the same tokens, as in a
        run of one token, the first one counts.  The end of a prompt is left out where there are more than MATCHES_MAX per
        chunk.  Holds the GIL, about 0.5 us per token."""
        number, length = self._spaces.get(space, 0), self.chunk_tokens
        last = len(tokens) - length
        if not number or last < 0:
            return []
        multiplier, top, key = self._multiplier, self._top, self._space_keys[number]
        sums = list(accumulate(tokens, lambda total, token: (total * multiplier + token) % _PRIME, initial=0))
        buckets, mask, fingerprints, following = self._buckets, self._mask, self._fingerprints, self._next
        words = memoryview(_words(tokens))
        found: dict[int, list[Match]] = {}
        starts: dict[int, int] = {}
        """The latest of each fingerprint."""
        start, most = -stride, MATCHES_MAX * (len(tokens) // length)
        for before, behind in zip(sums[::stride], sums[length::stride], strict=False):
            start += stride
            fingerprint = (behind - before * top) % _PRIME ^ key
            entry = buckets[fingerprint & mask]
            while entry:
                if fingerprints[entry] == fingerprint:
                    if not self._repeats(words, starts.get(fingerprint), start):
                        self._add_matches(found, number, fingerprint, start, words)
                        starts[fingerprint] = start
                    break
                entry = following[entry]
            if len(found) >= most:
                break
        ends = [start + length for start in found]
        while ends and len(found) < most:
            start = ends.pop()
            if start <= last and start not in found:
                fingerprint = (sums[start + length] - sums[start] * top) % _PRIME ^ key
                if self._add_matches(found, number, fingerprint, start, words):
                    ends.append(start + length)
        return [each for start in sorted(found) for each in found[start]]

    def find(self, space: Hashable, tokens: Sequence[int], chunk_hash: bytes) -> Match | None:
        """The entry of this very chunk, if these are its tokens."""
        number = self._spaces.get(space, 0)
        if not number:
            return None
        found: dict[int, list[Match]] = {}
        fingerprint = self._fingerprint(tokens) ^ self._space_keys[number]
        self._add_matches(found, number, fingerprint, 0, memoryview(_words(tokens)))
        return next((each for each in found.get(0, ()) if each.hash == chunk_hash), None)

    def note(self, match: Match, *, is_there: bool) -> None:
        """It was looked for, and was there or not."""
        entry = match.entry
        if self._hash_of(entry) != match.hash:
            return  # another chunk has its place meanwhile
        self._missed[entry] = not is_there
        if is_there:
            self._touch(entry)
        else:
            self._unchain(entry)
            self._chain(entry, 0, self._newer[0])

    # --- hashing

    def _fingerprint(self, tokens: Sequence[int]) -> int:
        multiplier = self._multiplier
        return reduce(lambda total, token: (total * multiplier + token) % _PRIME, tokens, 0)

    def _digest(self, words: bytes | memoryview) -> bytes:
        return blake3(words, key=self._key).digest(_DIGEST_BYTES)

    # --- entries

    def _find(self, number: int, fingerprint: int) -> Iterator[int]:
        """Entries of a space with this fingerprint, the latest first."""
        entry = self._buckets[fingerprint & self._mask]
        while entry:
            if self._fingerprints[entry] == fingerprint and self._space_of[entry] == number:
                yield entry
            entry = self._next[entry]

    def _repeats(self, words: memoryview, before: int | None, start: int) -> bool:
        """Are the tokens of the window at `start` those of one before it that it overlaps?"""
        length = self.chunk_tokens
        if before is None or start >= before + length:
            return False
        return words[4 * before : 4 * (before + length)] == words[4 * start : 4 * (start + length)]

    def _add_matches(
        self, found: dict[int, list[Match]], number: int, fingerprint: int, start: int, words: memoryview
    ) -> bool:
        digest = b""
        for entry in self._find(number, fingerprint):
            if not digest:
                digest = self._digest(words[4 * start : 4 * (start + self.chunk_tokens)])
            if self._digest_of(entry) == digest:
                found.setdefault(start, []).append(
                    Match(
                        start,
                        self._hash_of(entry),
                        self._places[entry],
                        self._parents[entry],
                        entry,
                        bool(self._missed[entry]),
                    )
                )
        return start in found

    def _digest_of(self, entry: int) -> bytes:
        return bytes(self._digests[entry * _DIGEST_BYTES : (entry + 1) * _DIGEST_BYTES])

    def _hash_of(self, entry: int) -> bytes:
        return bytes(self._hashes[entry * _HASH_BYTES : (entry + 1) * _HASH_BYTES])

    def _fill(self, entry: int, number: int, fingerprint: int, digest: bytes, chunk_hash: bytes) -> None:
        """An entry that is in no chain.  It is the newest one now."""
        self._digests[entry * _DIGEST_BYTES : (entry + 1) * _DIGEST_BYTES] = digest
        self._hashes[entry * _HASH_BYTES : (entry + 1) * _HASH_BYTES] = chunk_hash
        self._fingerprints[entry], self._space_of[entry], self._missed[entry] = fingerprint, number, 0
        bucket = fingerprint & self._mask
        self._next[entry], self._buckets[bucket] = self._buckets[bucket], entry
        self._chain(entry, self._older[0], 0)

    def _remove(self, entry: int) -> None:
        """Out of its bucket and the chain; its place is used at once."""
        bucket, following = self._fingerprints[entry] & self._mask, self._next[entry]
        before = self._buckets[bucket]
        if before == entry:
            self._buckets[bucket] = following
        else:
            while self._next[before] != entry:
                before = self._next[before]
            self._next[before] = following
        self._unchain(entry)
        self._close_space(self._space_of[entry])
        self.evicted += 1

    def _touch(self, entry: int) -> None:
        self._unchain(entry)
        self._chain(entry, self._older[0], 0)

    def _chain(self, entry: int, older: int, newer: int) -> None:
        """Put it between two neighbours."""
        self._older[entry], self._newer[entry] = older, newer
        self._newer[older] = self._older[newer] = entry

    def _unchain(self, entry: int) -> None:
        older, newer = self._older[entry], self._newer[entry]
        self._newer[older], self._older[newer] = newer, older

    # --- spaces

    def _open_space(self, space: Hashable) -> int:
        """Its number; 0 where there are too many."""
        if self._free_spaces:
            number = self._free_spaces.pop()
        elif len(self._space_keys) <= _SPACES_MAX:
            number = len(self._space_keys)
            self._space_keys.append(secrets.randbits(61))
            self._space_counts.append(0)
        else:
            return 0
        self._spaces[space], self._space_names[number] = number, space
        return number

    def _close_space(self, number: int) -> None:
        """One of its entries is gone."""
        self._space_counts[number] -= 1
        if not self._space_counts[number]:
            del self._spaces[self._space_names.pop(number)]
            self._free_spaces.append(number)


def _words(tokens: Sequence[int]) -> bytes:
    return array("I", tokens).tobytes()


def _zeros(kind: Literal["B", "H", "I", "Q"], count: int) -> memoryview[int]:
    """Memory that is taken from the machine only once it is written."""
    return memoryview(mmap(-1, count * array(kind).itemsize, MAP_PRIVATE | MAP_ANONYMOUS)).cast(kind)
