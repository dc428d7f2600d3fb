"""Pages of keys, from the names that the master knows and the header pages of the objects."""

from __future__ import annotations

import ctypes
import mmap
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final

from lmcache_core import HEADER_BYTES, Clock, KeyPage, ObjectHeader, ObjectKey, inspect
from lmcache_l2_mooncake.codes import MooncakeError
from lmcache_l2_mooncake.master import MasterHttp
from lmcache_l2_mooncake.store_client import Transfer
from lmcache_object_remote import object_id_of, object_name

FRESH_SECONDS: Final = 30.0
"""How long pages are made of names that were read before: the master gives them all at once."""
TOGETHER: Final = 64
"""Header pages that are read at once."""

ReadStarts = Callable[[Sequence[Transfer]], Sequence[int]]


class HeaderPages:
    """Room for header pages.  Its memory is never given back while an object of it lives."""

    def __init__(self) -> None:
        self._memory: Final = mmap.mmap(-1, TOGETHER * HEADER_BYTES)
        self.address: Final = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.length: Final = len(self._memory)

    def start(self, length: int) -> bytes:
        return self._memory[:length]

    def at(self, place: int) -> bytes:
        return self._memory[place * HEADER_BYTES : (place + 1) * HEADER_BYTES]


class Listing:
    """Any thread, one page at a time."""

    def __init__(self, master: MasterHttp, prefix: str, pages: HeaderPages, read: ReadStarts, clock: Clock) -> None:
        """`read` may raise LMCacheError."""
        self._master: Final = master
        self._prefix: Final = prefix
        self._pages: Final = pages
        self._read: Final = read
        self._clock: Final = clock
        self._lock: Final = threading.Lock()  # guards the pages and the two below
        self._names: Sequence[str] = ()
        self._read_at = float("-inf")

    def page(self, cursor: str | None, limit: int) -> KeyPage:
        """In the order of names; the cursor is the last one that was looked at.  Raises LMCacheError."""
        if cursor is not None and not (cursor.startswith(self._prefix) and object_id_of(cursor)):
            raise MooncakeError("the cursor of a listing is none that this adapter gave; begin without one")
        with self._lock:
            self._refresh(cursor)
            keys: list[ObjectKey] = []
            at = 0 if cursor is None else bisect_right(self._names, cursor)
            while at < len(self._names) and len(keys) < limit:
                names = self._names[at : at + min(TOGETHER, limit - len(keys))]
                keys += self._keys(names)
                at += len(names)
            more = at < len(self._names)
            return KeyPage(tuple(keys), self._names[at - 1] if more and at else None)

    def _refresh(self, cursor: str | None) -> None:
        now = self._clock.monotonic()
        if cursor is None or now - self._read_at > FRESH_SECONDS:
            names = self._master.names(self._prefix)
            self._names = [name for name in names if object_id_of(name) is not None]
            self._read_at = now

    def _keys(self, names: Sequence[str]) -> list[ObjectKey]:
        """Of those that are there, and ours."""
        start = self._pages.address
        wanted = [Transfer(name, start + place * HEADER_BYTES, HEADER_BYTES) for place, name in enumerate(names)]
        found: list[ObjectKey] = []
        for place, (name, code) in enumerate(zip(names, self._read(wanted), strict=True)):
            if code != HEADER_BYTES:
                continue  # gone meanwhile, or too short to be an object
            header = inspect(self._pages.at(place))
            if isinstance(header, ObjectHeader) and object_name(self._prefix, header.key) == name:
                found.append(header.key)
        return found
