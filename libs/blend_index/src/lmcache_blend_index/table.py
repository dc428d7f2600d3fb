"""A table of chunks in pure Python, which says what the compiled one of lmcache-native does."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import accumulate
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Final, Literal, Protocol

from blake3 import blake3

PRIME: Final = 2**61 - 1
ALIKE_MAX: Final = 2
"""Entries of one space with equal tokens: chunks that were stored behind different ones."""
MATCHES_MAX: Final = 8
"""Windows of a prompt that match, for each chunk that it has room for: each costs about 20 us in Python, 1 us compiled."""
_DIGEST_BYTES: Final = 16
_HASH_BYTES: Final = 32

Found = tuple[int, bytes, int, int, int, bool]
"""The fields of a `Match`."""


class ChunkTable(Protocol):
    """Entries of chunks, numbered from 1 on.  Not synchronised.

    A space is a number from 1 to 2**16 - 1, with a mask below 2**61 that is always the same.  Tokens are below 2**32.  Raises
    OverflowError or ValueError for others, and for a chunk that is not as long as all others."""

    def __len__(self) -> int: ...

    def add(self, space: int, mask: int, tokens: Sequence[int], chunk_hash: bytes, place: int, parent: int) -> int:
        """The newest entry is this chunk.  Returns the space that lost an entry for it, 0 for none, and -1 where the chunk
        had an entry."""
        ...

    def match(self, space: int, mask: int, tokens: Sequence[int], stride: int) -> list[Found]:
        """See `ChunkIndex.match`."""
        ...

    def note(self, entry: int, chunk_hash: bytes, is_there: bool) -> None:
        """The entry is the newest one, or the oldest and missed.  Nothing where it is another chunk's."""
        ...


class PureChunkTable:
    """Everything of an entry is in flat arrays that the garbage collector does not walk, at most 96 bytes per chunk, which take
    memory only once they are used."""

    def __init__(self, chunk_tokens: int, chunks_max: int, multiplier: int, key: bytes) -> None:
        self._chunk_tokens, self._chunks_max = chunk_tokens, chunks_max
        self._multiplier, self._key = multiplier, key
        self._top = pow(multiplier, chunk_tokens, PRIME)
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

    def __len__(self) -> int:
        return self._used

    def add(self, space: int, mask: int, tokens: Sequence[int], chunk_hash: bytes, place: int, parent: int) -> int:
        if len(tokens) != self._chunk_tokens:
            raise ValueError(f"a chunk has {self._chunk_tokens} tokens, and not {len(tokens)}")
        if len(chunk_hash) != _HASH_BYTES:
            raise ValueError(f"a chunk's hash has {_HASH_BYTES} bytes")
        words = _words(tokens)
        multiplier = self._multiplier
        fingerprint = reduce(lambda total, token: (total * multiplier + token) % PRIME, tokens, 0) ^ mask
        digest = self._digest(words)
        alike = [each for each in self._find(space, fingerprint) if self._digest_of(each) == digest]
        for entry in alike:
            if self._hash_of(entry) == chunk_hash:
                self._missed[entry] = 0
                self._touch(entry)
                return -1
        if len(alike) >= ALIKE_MAX:
            entry = next((each for each in alike if self._missed[each]), alike[-1])
        elif self._used < self._chunks_max:
            self._used += 1
            entry = self._used
        else:
            entry = self._newer[0]
        lost = self._space_of[entry]
        if lost:
            self._remove(entry)
        self._fill(entry, space, fingerprint, digest, chunk_hash)
        self._places[entry], self._parents[entry] = place, parent
        return lost

    def match(self, space: int, mask: int, tokens: Sequence[int], stride: int) -> list[Found]:
        length = self._chunk_tokens
        last = len(tokens) - length
        if last < 0:
            return []
        multiplier, top = self._multiplier, self._top
        sums = list(accumulate(tokens, lambda total, token: (total * multiplier + token) % PRIME, initial=0))
        buckets, bucket_mask, fingerprints, following = self._buckets, self._mask, self._fingerprints, self._next
        words = memoryview(_words(tokens))
        found: dict[int, list[Found]] = {}
        starts: dict[int, int] = {}
        """The latest of each fingerprint."""
        start, most = -stride, MATCHES_MAX * (len(tokens) // length)
        for before, behind in zip(sums[::stride], sums[length::stride], strict=False):
            start += stride
            fingerprint = (behind - before * top) % PRIME ^ mask
            entry = buckets[fingerprint & bucket_mask]
            while entry:
                if fingerprints[entry] == fingerprint:
                    if not self._repeats(words, starts.get(fingerprint), start):
                        self._add_matches(found, space, fingerprint, start, words)
                        starts[fingerprint] = start
                    break
                entry = following[entry]
            if len(found) >= most:
                break
        ends = [start + length for start in found]
        while ends and len(found) < most:
            start = ends.pop()
            if start <= last and start not in found:
                fingerprint = (sums[start + length] - sums[start] * top) % PRIME ^ mask
                if self._add_matches(found, space, fingerprint, start, words):
                    ends.append(start + length)
        return [each for start in sorted(found) for each in found[start]]

    def note(self, entry: int, chunk_hash: bytes, is_there: bool) -> None:
        if not entry or self._hash_of(entry) != chunk_hash:
            return
        self._missed[entry] = not is_there
        if is_there:
            self._touch(entry)
        else:
            self._unchain(entry)
            self._chain(entry, 0, self._newer[0])

    def _digest(self, words: bytes | memoryview) -> bytes:
        return blake3(words, key=self._key).digest(_DIGEST_BYTES)

    def _find(self, space: int, fingerprint: int) -> Iterator[int]:
        """Entries of a space with this fingerprint, the latest first."""
        entry = self._buckets[fingerprint & self._mask]
        while entry:
            if self._fingerprints[entry] == fingerprint and self._space_of[entry] == space:
                yield entry
            entry = self._next[entry]

    def _repeats(self, words: memoryview, before: int | None, start: int) -> bool:
        """Are the tokens of the window at `start` those of one before it that it overlaps?"""
        length = self._chunk_tokens
        if before is None or start >= before + length:
            return False
        return words[4 * before : 4 * (before + length)] == words[4 * start : 4 * (start + length)]

    def _add_matches(
        self, found: dict[int, list[Found]], space: int, fingerprint: int, start: int, words: memoryview
    ) -> bool:
        digest = b""
        for entry in self._find(space, fingerprint):
            if not digest:
                digest = self._digest(words[4 * start : 4 * (start + self._chunk_tokens)])
            if self._digest_of(entry) == digest:
                place, parent, is_missed = self._places[entry], self._parents[entry], bool(self._missed[entry])
                match = (start, self._hash_of(entry), place, parent, entry, is_missed)
                found.setdefault(start, []).append(match)
        return start in found

    def _digest_of(self, entry: int) -> bytes:
        return bytes(self._digests[entry * _DIGEST_BYTES : (entry + 1) * _DIGEST_BYTES])

    def _hash_of(self, entry: int) -> bytes:
        return bytes(self._hashes[entry * _HASH_BYTES : (entry + 1) * _HASH_BYTES])

    def _fill(self, entry: int, space: int, fingerprint: int, digest: bytes, chunk_hash: bytes) -> None:
        """An entry that is in no chain.  It is the newest one now."""
        self._digests[entry * _DIGEST_BYTES : (entry + 1) * _DIGEST_BYTES] = digest
        self._hashes[entry * _HASH_BYTES : (entry + 1) * _HASH_BYTES] = chunk_hash
        self._fingerprints[entry], self._space_of[entry], self._missed[entry] = fingerprint, space, 0
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


def _words(tokens: Sequence[int]) -> bytes:
    return array("I", tokens).tobytes()


def _zeros(kind: Literal["B", "H", "I", "Q"], count: int) -> memoryview[int]:
    """Memory that is taken from the machine only once it is written."""
    return memoryview(mmap(-1, count * array(kind).itemsize, MAP_PRIVATE | MAP_ANONYMOUS)).cast(kind)
