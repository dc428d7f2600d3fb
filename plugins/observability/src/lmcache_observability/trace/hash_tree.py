"""Tells the hashes of prompts without telling a prefix twice.

A chunk hash names its chunk and all chunks before it.  So where a hash was recorded before, all hashes before it were,
and a lookup is one number for the longest prefix that was, and the hashes behind that.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

HASH_BYTES: Final = 32


class HashWriter:
    """Remembers the last `limit` hashes that were recorded; older ones are recorded again.  Numbers begin at 1."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._numbers: OrderedDict[bytes, int] = OrderedDict()
        self._last = 0

    def forget(self) -> None:
        """Begin anew, as the reader does where records are missing: what was sent may not have arrived."""
        self._numbers.clear()
        self._last = 0

    def tell(self, chunk_hashes: bytes) -> tuple[int, bytes]:
        """The number of the longest known prefix, and the hashes behind it, which are known from now on.

        A trailing part of a hash is left out."""
        count = len(chunk_hashes) // HASH_BYTES
        low, known = 0, 0
        high = count
        while low < high:  # a longest prefix, or a shorter one where the middle was forgotten
            middle = (low + high + 1) // 2
            number = self._numbers.get(_at(chunk_hashes, middle - 1))
            if number is None:
                high = middle - 1
            else:
                low, known = middle, number
        more = chunk_hashes[low * HASH_BYTES : count * HASH_BYTES]
        for index in range(low, count):
            self._last += 1
            self._numbers[_at(chunk_hashes, index)] = self._last
        while len(self._numbers) > self._limit:
            self._numbers.popitem(last=False)
        return known, more


class HashReader:
    """The other side.  Grows with what was recorded, 100 bytes or so for each hash."""

    def __init__(self) -> None:
        self._hashes: list[bytes] = [b""]
        self._before: list[int] = [0]

    def forget(self) -> None:
        """See `HashWriter.forget`."""
        del self._hashes[1:], self._before[1:]

    def hear(self, known: int, more: bytes) -> list[bytes]:
        """All hashes of the prompt.  Raises ValueError for a number that was never given out."""
        if not 0 <= known < len(self._hashes) or len(more) % HASH_BYTES:
            raise ValueError(f"hash number {known} of {len(self._hashes) - 1}, and {len(more)} bytes of hashes")
        prefix: list[bytes] = []
        number = known
        while number:
            prefix.append(self._hashes[number])
            number = self._before[number]
        prefix.reverse()
        for start in range(0, len(more), HASH_BYTES):
            own = more[start : start + HASH_BYTES]
            self._before.append(known)
            self._hashes.append(own)
            known = len(self._hashes) - 1
            prefix.append(own)
        return prefix


def _at(chunk_hashes: bytes, index: int) -> bytes:
    return chunk_hashes[index * HASH_BYTES : (index + 1) * HASH_BYTES]
