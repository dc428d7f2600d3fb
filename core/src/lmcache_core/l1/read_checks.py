"""Are the bytes in a slot still those that were published?  For servers whose engines may overwrite each other's.

Engines of the server's user map all of L1 and can write to any slot.  With `--l1-verify-reads` the server keeps a digest of
each payload in memory of its own, from just before the object becomes visible, and compares it before a reader is given the
slot.  An object that differs is removed from the index.  A write between the comparison and the reader's copy is not seen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from lmcache_core.model.object_header import HEADER_BYTES, digest

if TYPE_CHECKING:
    from lmcache_core.l1.cache import L1Cache

QUICK_BYTES: Final = 256 << 10
"""Bytes that are compared in some tens of microseconds."""


class ReadChecks:
    """Safe from any thread.  No method is called with the cache's lock; each reads the payloads of its slots, which the
    caller references, and raises OSError where L1 is a file whose disk fails.

    A digest is kept by slot number and replaced when the slot is published again, so that there are at most as many as
    slots.  It is written while only the writer references the slot, and read while a reader does: no lock is needed."""

    def __init__(self, cache: L1Cache, log: Callable[[str], None]) -> None:
        """`log` gets a line each time that objects were dropped."""
        self._cache = cache
        self._log = log
        self._digests: dict[int, bytes] = {}
        self._lock = threading.Lock()  # guards `overwritten`
        self.overwritten = 0
        """Objects that were dropped because their bytes had changed."""
        self.unpin: Callable[[Sequence[int]], None] = lambda slots: None
        """Releases pins of dropped objects.  Set before anything runs."""

    def note(self, slots: Sequence[int]) -> None:
        """These are filled and about to be published."""
        for slot in slots:
            self._digests[slot] = self._read(slot)

    def noted(self, slot: int) -> bytes:
        """The xxh3-128 of the payload as it was published, or is about to be."""
        return self._digests[slot]

    def changed(self, slots: Sequence[int]) -> list[int]:
        """Those of these published slots whose bytes are others now.  Their objects are removed from
        the index, and their slots are freed with the last reference."""
        changed = [slot for slot in dict.fromkeys(slots) if self._digests.get(slot) != self._read(slot)]
        if changed:
            self._drop(changed)
        return changed

    def _read(self, slot: int) -> bytes:
        self._cache.fetch(slot)
        return digest(self._cache.buffer(slot).view[HEADER_BYTES:])

    def _drop(self, slots: Sequence[int]) -> None:
        dropped = self._cache.contents.drop_referenced(slots)
        self.unpin(dropped)
        with self._lock:
            self.overwritten += len(dropped)
        if dropped:
            key = self._cache.key_of(dropped[0])
            self._log(
                f"l1 dropped objects that were overwritten after they were published objects={len(dropped)} "
                f"model={key.space.model_name!r} cache_salt={key.space.cache_salt!r} chunk={key.chunk_hash.hex()}"
            )
