"""What an adapter has from before, and what other servers store there: learned from listings."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Final, Protocol

from lmcache_core import Capability, EvictedAdapter, ObjectKey

logger = logging.getLogger(__name__)

PAGE_KEYS: Final = 1000
PAGES_AHEAD: Final = 8
"""Pages that may wait for the controller."""
PAUSE_SECONDS: Final = 0.05
RETRY_SECONDS: Final = (1.0, 4.0, 16.0, 60.0)
"""Pauses after a page that failed; after the last one the listing is abandoned."""
AGAIN_SECONDS: Final = 600.0
"""Between two listings of a backend to which other servers store, too."""


class ListedContents(Protocol):
    """Who learns the objects.  Any thread."""

    @property
    def waiting(self) -> int:
        """Messages that were not handled yet."""

    def listed(self, keys: Sequence[ObjectKey]) -> None:
        """The adapter has these, and has had them for some time."""


class L2Listing:
    """`run` is its thread's body, which ends when everything is listed; when it is started again it goes on where it
    was.  What several servers share is listed again every `AGAIN_SECONDS`, since the others' stores are not notified.  A
    backend may block it as long as it likes: nothing else waits for it."""

    def __init__(self, adapter: EvictedAdapter, contents: ListedContents) -> None:
        self._adapter = adapter
        self._contents = contents
        self._stop = threading.Event()
        self._cursor: str | None = None
        self._seen: set[str] = set()
        self._faults = 0
        self.objects = 0
        self.state = "listing"

    def run(self) -> None:
        self._list()
        while Capability.SHARED in self._adapter.capabilities and not self._stop.wait(AGAIN_SECONDS):
            self._cursor, self._faults, self.objects = None, 0, 0
            self._seen.clear()
            self.state = "listing"
            self._list()

    def stop(self) -> None:
        self._stop.set()

    def _list(self) -> None:
        while self.state == "listing" and not self._stop.is_set():
            # Objects that are listed count as large as the average, which an adapter that still learns cannot tell.
            if self._contents.waiting > PAGES_AHEAD or self._adapter.is_learning:
                self._stop.wait(PAUSE_SECONDS)
            elif not self._list_page():
                self._rest()

    def _list_page(self) -> bool:
        """False where the page failed."""
        page = self._adapter.list_keys(self._cursor, PAGE_KEYS)
        if page is None or not self._leads_on(page.cursor):
            return False
        keys = [key for key in page.keys if isinstance(key, ObjectKey)]
        self._contents.listed(keys)
        self.objects += len(keys)
        self._cursor, self._faults = page.cursor, 0
        if self._cursor is None:
            self.state = "done"
            logger.info("l2 listing done adapter=%s objects=%d", self._adapter.name, self.objects)
        return True

    def _leads_on(self, cursor: object) -> bool:
        """Not in circles."""
        if cursor is None:
            return True
        if not isinstance(cursor, str) or cursor in self._seen:
            return False
        self._seen.add(cursor)
        return True

    def _rest(self) -> None:
        if self._faults == len(RETRY_SECONDS):
            self.state = "failed"
            logger.warning(
                "l2 listing abandoned adapter=%s objects=%d; of the others, those that lookups find can still be evicted",
                self._adapter.name,
                self.objects,
            )
            return
        self._faults += 1
        self._stop.wait(RETRY_SECONDS[self._faults - 1])
