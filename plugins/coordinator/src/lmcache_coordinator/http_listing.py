"""Listings of servers that keep no journals: their admin API is asked what the shared L2 has."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Final

from lmcache_client.errors import LMCacheError
from lmcache_coordinator.models import EventKey
from lmcache_coordinator.posted_events import BACKEND, PostedEvents, event_hash, space_of
from lmcache_coordinator.registry import Instance, Registry, is_poster
from lmcache_coordinator.server_api import Listed, ServerApi
from lmcache_coordinator.settings import CoordinatorSettings
from lmcache_coordinator.usage import SharedUsage
from lmcache_core import Clock, parse_canonical

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 60.0
"""After no server could list."""


class HttpListing:
    """One listing at the start, and one after batches that are missing.  `look` is for one thread."""

    def __init__(
        self,
        settings: CoordinatorSettings,
        usage: SharedUsage,
        posted: PostedEvents,
        registry: Registry,
        clock: Clock,
        goes_on: Callable[[], bool],
    ) -> None:
        """`goes_on`: false when the coordinator stops.  Asked before each page."""
        self._settings, self._usage, self._posted, self._registry = settings, usage, posted, registry
        self._clock, self._goes_on = clock, goes_on
        self._waits_until = clock.monotonic() + settings.resync_max_wait
        self._at_start = settings.enable_startup_resync
        self._retry_at = clock.monotonic()
        self._covered = 0
        """Gaps that a listing has made up for."""

    @property
    def is_missing(self) -> bool:
        """Were batches lost, or did the first listing fail, and no listing has made up for it?  Any thread."""
        return self._missing > self._covered

    @property
    def _missing(self) -> int:
        return self._posted.gaps + self._posted.rows

    def look(self) -> None:
        """Lists, if something is missing and a server can be asked."""
        now, gaps = self._clock.monotonic(), self._missing
        self._at_start = self._at_start and now < self._waits_until
        servers = [each for each in self._registry.live() if is_poster(each)]
        if not servers or now < self._retry_at or not (self._at_start or self.is_missing):
            return
        if any(map(self._list, servers)):
            self._covered = gaps
        else:
            self._covered = min(self._covered, gaps - 1)  # a start without a listing is a gap, too
            self._retry_at = now + RETRY_SECONDS
        self._at_start = False

    def _list(self, server: Instance) -> bool:
        """False: it did not."""
        self._usage.begin_listing(BACKEND)
        try:
            listed = sum(map(self._take, self._entries(server)))
            gone = self._usage.end_listing(BACKEND)
        except (LMCacheError, ValueError) as error:
            self._usage.abandon_listing(BACKEND)
            logger.warning(
                "a server did not list shared L2, and usage may be wrong until one does instance=%s error=%s",
                server.instance_id,
                error,
            )
            return False
        logger.info("shared L2 was listed instance=%s objects=%d gone=%d", server.instance_id, listed, len(gone))
        return True

    def _take(self, entry: Listed) -> int:
        """How many were not known."""
        key, size = _key(entry.key), entry.stored_bytes if entry.size_bytes is None else entry.size_bytes
        there = self._usage.listed(
            BACKEND, space_of(key), [event_hash(key.chunk_hash_hex)], None if size is None else max(0, size)
        )
        return len(there)

    def _entries(self, server: Instance) -> Iterator[Listed]:
        """Raises LMCacheError."""
        token = None
        with closing(ServerApi(server, self._settings.member_token_file)) as api:
            while True:
                if not self._goes_on():
                    raise LMCacheError("the coordinator stops")
                page = api.page("l2", self._settings.resync_page_size, token)
                yield from page.entries
                if not (token := page.next_page_token):
                    return


def _key(given: str | dict[str, str | int]) -> EventKey:
    """Raises ValueError, ProtocolError."""
    if isinstance(given, dict):
        return EventKey.model_validate(given)
    key = parse_canonical(bytes.fromhex(given))
    return EventKey(
        chunk_hash_hex=key.chunk_hash.hex(),
        model_name=key.space.model_name,
        kv_rank=key.space.kv_rank,
        cache_salt=key.space.cache_salt,
        object_group_id=key.space.object_group,
    )
