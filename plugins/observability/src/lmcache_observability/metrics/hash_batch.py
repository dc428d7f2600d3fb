"""The chunk hashes of many events, taken apart at once: one event alone costs as much as a hundred together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Final

import numpy as np

from lmcache_core import LookupHashes, ObjectsAdded, ObjectsRead, ObjectsRemoved
from lmcache_observability.metrics.distinct_chunks import Words

HashesEvent = LookupHashes | ObjectsAdded | ObjectsRemoved | ObjectsRead

HASH_BYTES: Final = 32
_WORDS: Final = HASH_BYTES // 8
_OWNERS_REMEMBERED: Final = 1024


class HashBatch:
    """Hashes are digests, so that each 8 bytes of one are a uniform number: the first say which chunk it is, the last
    whether it is in the sample."""

    def __init__(self, events: Sequence[HashesEvent]) -> None:
        self.events = events
        hashes = [_whole(event.chunk_hashes) for event in events]
        self._blob = b"".join(hashes)
        self.ends = np.cumsum([len(each) // HASH_BYTES for each in hashes], dtype=np.int64)
        """By the index of the event, where its hashes end."""
        self._numbers = np.frombuffer(self._blob, np.uint64)

    def words(self) -> Iterator[Words]:
        """For each event one number for each of its chunks; the same tokens of another model or tenant have others."""
        owners = np.fromiter(
            (_owner(each.model_name, each.cache_salt) for each in self.events), np.uint64, len(self.events)
        )
        begins = np.concatenate(([0], self.ends[:-1]))
        mixed: Words = self._numbers[::_WORDS] ^ np.repeat(owners, self.ends - begins)
        for begin, end in zip(begins.tolist(), self.ends.tolist(), strict=True):
            yield mixed[begin:end]

    def sample(self, threshold: int) -> Iterator[tuple[HashesEvent, bytes]]:
        """The chunks whose `sample_number` is below the threshold, in their order, and the event of each."""
        if threshold <= 0:
            return
        chosen = np.flatnonzero(self._numbers[_WORDS - 1 :: _WORDS] <= np.uint64(threshold - 1))
        owners = np.searchsorted(self.ends, chosen, side="right")
        for position, owner in zip(chosen.tolist(), owners.tolist(), strict=True):
            yield self.events[owner], self._blob[position * HASH_BYTES : (position + 1) * HASH_BYTES]


def sample_number(chunk_hash: bytes) -> int:
    """Below 2**64."""
    return int.from_bytes(chunk_hash[-8:], "little")


def _whole(hashes: bytes) -> bytes:
    """Without a torn hash at the end, which would put all that follow out of step."""
    torn = len(hashes) % HASH_BYTES
    return hashes[:-torn] if torn else hashes


@lru_cache(_OWNERS_REMEMBERED)
def _owner(model_name: str, cache_salt: str) -> int:
    text = f"{model_name}\0{cache_salt}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")
