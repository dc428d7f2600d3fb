"""The keys that every subject gets: chunk hashes of instances, a part of which all instances may have.

Needs numpy alone, because the public package's environment runs it, too."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

HASH_BYTES = 32
COMMON = 0
"""The number of an instance that is none: its chunks are those that all have."""
_ODD = np.uint64(0x9E3779B97F4A7C15)


def hashes(instance: int, first: int, count: int, common: int) -> bytes:
    """Hashes of an instance's chunks from number `first` on, one behind the other.  Those below `common` are the same for all
    instances."""
    numbers = np.arange(first, first + count, dtype=np.uint64)
    owners = np.where(numbers < np.uint64(common), np.uint64(COMMON), np.uint64(instance))
    words = np.empty((count, HASH_BYTES // 8), np.uint64)
    words[:, 0] = _mixed((owners << np.uint64(32) | numbers) + _ODD)
    for word in range(1, words.shape[1]):
        words[:, word] = _mixed(words[:, word - 1] + _ODD)
    return words.tobytes()


def integers(packed: bytes) -> list[int]:
    """What designs that have integers as keys get: the first 8 bytes of each hash."""
    firsts: list[int] = np.frombuffer(packed, np.uint64)[:: HASH_BYTES // 8].tolist()
    return firsts


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finalizer of splitmix64: a permutation, so that no two keys are equal."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
