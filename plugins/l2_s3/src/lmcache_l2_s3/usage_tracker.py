"""What the bucket holds: listed in the background, and kept up to date by what this server does."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import AbstractContextManager
from typing import Final

from lmcache_core import Usage
from lmcache_l2_s3.answers import S3Error
from lmcache_l2_s3.calls import InThread
from lmcache_l2_s3.control_plane import LIST_MAX, ControlPlane
from lmcache_object_remote import UsageCounter, object_id_of

RETRY_SECONDS: Final = (1.0, 4.0, 16.0, 60.0)
DOUBT_SECONDS: Final = 60.0
"""Between two listings that were wanted because something did not add up."""


class UsageTracker:
    """Objects, bytes and room.  Any thread, but `keep`."""

    def __init__(self, capacity_bytes: int | None) -> None:
        self.capacity_bytes: Final = capacity_bytes
        self._counter: Final = UsageCounter()
        self._lock: Final = threading.Lock()  # guards the two below
        self._promised = 0
        self._own = 0
        self._doubts = asyncio.Event()
        self.listings = 0
        self.foreign = 0
        """Names below the prefix that no object can have, as of the last listing."""

    def reserve(self, size: int) -> bool:
        """Promise room to a store; `release` it in any case.  False: there is none.

        Until it is known what was there at the start, only what this server stored counts."""
        if self.capacity_bytes is None:
            return True
        with self._lock:
            usage = self._counter.usage()
            used = self._own if usage is None else usage.used_bytes
            if used + self._promised + size > self.capacity_bytes:
                return False
            self._promised += size
            return True

    def release(self, size: int) -> None:
        if self.capacity_bytes is not None:
            with self._lock:
                self._promised -= size

    def changing(self, object_id: bytes) -> AbstractContextManager[None]:
        """Around a request that stores or deletes it, and its result."""
        return self._counter.changing(object_id)

    def stored(self, object_id: bytes, size: int) -> None:
        with self._lock:
            self._own += size
        self._counter.stored(object_id, size)

    def deleted(self, object_id: bytes, size: int) -> None:
        with self._lock:
            self._own -= size
        self._counter.deleted(object_id, size)

    def doubt(self) -> None:
        """What was counted may be wrong: list again soon.  On the loop."""
        self._doubts.set()

    def usage(self, owned: bool) -> Usage | None:
        """Without a capacity where another server may own the bucket: core evicts nothing then."""
        return self._counter.usage(self.capacity_bytes if owned else None)

    async def keep(
        self, control: ControlPlane, in_thread: InThread, every_seconds: float | None, logger: logging.Logger
    ) -> None:
        """List until it is known what there is, then again where something did not add up, and `every_seconds` (None: only
        then).  Until cancelled."""
        failures = 0
        while True:
            self._doubts.clear()
            try:
                await self._list(control, in_thread)
                failures = 0
            except S3Error as error:
                pause = RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)]
                failures += 1
                logger.warning("the bucket cannot be listed, again in %.0f s: %s", pause, error)
                await asyncio.sleep(pause)
                continue
            try:
                async with asyncio.timeout(every_seconds):
                    await self._doubts.wait()
                    await asyncio.sleep(DOUBT_SECONDS)
            except TimeoutError:
                pass

    async def _list(self, control: ControlPlane, in_thread: InThread) -> None:
        foreign = 0
        after: str | None = None
        with self._counter.counting() as count:
            while True:
                page = await in_thread(control.list_page, after, LIST_MAX)
                for name, size in page.objects:
                    object_id = object_id_of(name)
                    if object_id is None:
                        foreign += not name.startswith(control.own_names)
                    else:
                        count.saw(object_id, size)
                if (after := page.after) is None:
                    break
            # It may sort a million: not on the loop.
            await in_thread(count.finish)
        self.foreign = foreign
        self.listings += 1
