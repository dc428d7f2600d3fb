"""Pages of keys, in the order of object ids."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from lmcache_core import HEADER_BYTES, Clock, ConfigError, KeyPage, ObjectHeader, inspect
from lmcache_l2_redis.client import Client
from lmcache_l2_redis.errors import WrongTypeError
from lmcache_l2_redis.replies import command
from lmcache_l2_redis.scan import scan
from lmcache_object_remote import object_id_of, object_name

KEPT_SECONDS: Final = 60.0
PAGES_TOGETHER: Final = 256
"""Header pages that are fetched at a time: a MiB."""
_CURSOR: Final = re.compile(r"[0-9a-f]{32}")
InThread = Callable[[Callable[[Sequence[str]], "Snapshot"], Sequence[str]], Awaitable["Snapshot"]]


class Snapshot:
    """All names at one moment, sorted by object id: about 20 B each.  A server lists names in no order, and some twice."""

    def __init__(self, names: Sequence[str]) -> None:
        self._folders: Final[list[str]] = []
        places: dict[str, int] = {}
        records = set()
        for name in names:
            if (object_id := object_id_of(name)) is None:
                continue
            folder = name[: -len("/aa/") - 2 * len(object_id) - len(".kv")]
            place = places.setdefault(folder, len(places))
            if place == len(self._folders):
                self._folders.append(folder)
            records.add(object_id + place.to_bytes(4, "big"))
        self._records: Final = b"".join(sorted(records))

    def after(self, cursor: bytes, count: int) -> list[tuple[bytes, str]]:
        """Up to `count` object ids behind the cursor, with their names."""
        low, high = 0, len(self._records) // 20
        while low < high:
            middle = (low + high) // 2
            if self._records[20 * middle : 20 * middle + 16] <= cursor:
                low = middle + 1
            else:
                high = middle
        found = []
        for at in range(20 * low, min(20 * (low + count), len(self._records)), 20):
            object_id = self._records[at : at + 16]
            folder = self._folders[int.from_bytes(self._records[at + 16 : at + 20], "big")]
            found.append((object_id, f"{folder}/{object_id[:1].hex()}/{object_id.hex()}.kv"))
        return found


class Listing:
    """The names are asked for when a listing begins, and kept for its next pages; a page that comes later asks again.  The
    order is the same, so any cursor may be continued, after a restart, too.  Called by other threads than the loop's."""

    def __init__(
        self, client: Client, prefix: str, loop: asyncio.AbstractEventLoop, clock: Clock, in_thread: InThread
    ) -> None:
        """`in_thread` runs what takes long beside the loop: sorting a million names does."""
        self._client: Final = client
        self._prefix: Final = prefix
        self._loop: Final = loop
        self._clock: Final = clock
        self._in_thread: Final = in_thread
        self._lock: Final = threading.Lock()  # guards the two below
        self._snapshot: Snapshot | None = None
        self._taken_at = 0.0

    def page(self, cursor: str | None, limit: int) -> KeyPage:
        """Blocks.  Raises ConfigError for a cursor that is none."""
        if cursor is not None and not _CURSOR.fullmatch(cursor):
            raise ConfigError(f"'{cursor[:40]}' is not a cursor of this adapter's listing; begin without one")
        return asyncio.run_coroutine_threadsafe(self._page(cursor, limit), self._loop).result()

    async def _page(self, cursor: str | None, limit: int) -> KeyPage:
        snapshot = await self._names(anew=cursor is None)
        at = b"" if cursor is None else bytes.fromhex(cursor)
        headers: list[ObjectHeader] = []
        while wanted := min(limit - len(headers), PAGES_TOGETHER):
            found = snapshot.after(at, wanted)
            if not found:
                return _page(headers, None)
            at = found[-1][0]
            read = await asyncio.gather(*(self._header(name) for _, name in found))
            headers += [header for header in read if header is not None]
        is_last = not snapshot.after(at, 1)
        return _page(headers, None if is_last else at.hex())

    async def _names(self, *, anew: bool) -> Snapshot:
        now = self._clock.monotonic()
        with self._lock:
            if not anew and self._snapshot is not None and now - self._taken_at < KEPT_SECONDS:
                self._taken_at = now
                return self._snapshot
        names: list[str] = []
        async for some in scan(self._client.topology, self._prefix):
            names += some
        snapshot = await self._in_thread(Snapshot, names)
        with self._lock:
            self._snapshot, self._taken_at = snapshot, now
        return snapshot

    async def _header(self, name: str) -> ObjectHeader | None:
        """None: it is gone, or not ours."""
        data = name.encode()
        try:
            (page,) = await self._client.ask(data, command("GETRANGE", data, 0, HEADER_BYTES - 1))
        except WrongTypeError:
            return None
        header = inspect(page) if isinstance(page, bytes) else None
        is_ours = isinstance(header, ObjectHeader) and object_name(self._prefix, header.key) == name
        return header if isinstance(header, ObjectHeader) and is_ours else None


def _page(headers: Sequence[ObjectHeader], cursor: str | None) -> KeyPage:
    sizes = tuple(HEADER_BYTES + header.stored_bytes for header in headers)
    return KeyPage(tuple(header.key for header in headers), cursor, sizes)
