"""The digest of an object while its bytes come."""

from __future__ import annotations

from typing import Final

import xxhash

from lmcache_core import HEADER_BYTES


class PassingDigest:
    """Of the payload: the header page comes first, and counts for nothing."""

    def __init__(self) -> None:
        self._hash: Final = xxhash.xxh3_128()
        self._page_bytes_left = HEADER_BYTES

    def passed(self, part: memoryview) -> None:
        """The next bytes of the object, however many."""
        if self._page_bytes_left:
            of_page = min(self._page_bytes_left, len(part))
            self._page_bytes_left -= of_page
            part = part[of_page:]
        self._hash.update(part)

    def digest(self) -> bytes:
        """As `check` takes it."""
        return self._hash.digest()
