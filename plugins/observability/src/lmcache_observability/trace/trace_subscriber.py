"""The subscriber `trace`: records what the server is asked, or everything that happens."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from lmcache_core import Event, LookupHashes, ResourceError, ServerView, Subscriber, Subscriptions
from lmcache_observability.shown_salt import shown_salt
from lmcache_observability.trace.hash_tree import HashWriter
from lmcache_observability.trace.record_events import OPERATIONS, event_record
from lmcache_observability.trace.recorder import Recorder
from lmcache_observability.trace.records import Began, Closed, Lookup
from lmcache_observability.trace.settings import TraceSettings

logger = logging.getLogger(__name__)


class TraceSubscriber(Subscriber):
    """Writes whenever a batch is delivered."""

    def __init__(self, settings: TraceSettings, recorder: Recorder) -> None:
        self._settings = settings
        self._recorder = recorder
        self._hashes = HashWriter(settings.hashes_max)
        self._lost_records = 0

    def subscriptions(self) -> Subscriptions:
        if self._settings.level == "events":
            return {Event: self._happened}
        operations = {kind: self._done(make) for kind, make in OPERATIONS.items()}
        return {LookupHashes: self._looked_up, **operations}

    def begin(self, server: ServerView) -> None:
        info = server.info
        self._recorder.add(Began(time.time(), self._settings.level, info.boot_id, info.version, info.chunk_tokens))
        logger.info("recording level=%s file=%s", self._settings.level, self._recorder.path)

    def batch_done(self) -> None:
        self._recorder.flush()

    def close(self) -> None:
        self._recorder.add(Closed(time.time()))
        self._recorder.close()

    def _looked_up(self, event: LookupHashes) -> None:
        if self._lost_records != self._recorder.lost_records:
            self._lost_records = self._recorder.lost_records
            self._hashes.forget()
        known, more = self._hashes.tell(event.chunk_hashes)
        salt = shown_salt(event.cache_salt, self._settings.salts)
        about = (event.request_id, event.model_name, salt, event.world_size, event.prompt_tokens)
        self._recorder.add(Lookup(event.at, *about, known, more))

    def _done(self, make: Callable[..., Any]) -> Callable[[Event], None]:
        recorder, salts = self._recorder, self._settings.salts
        return lambda event: recorder.add(make(event, salts))

    def _happened(self, event: Event) -> None:
        if isinstance(event, LookupHashes):
            self._looked_up(event)
        else:
            self._recorder.add(event_record(event, self._settings.salts))


def open_trace(settings: TraceSettings) -> Subscriber:
    """Raises ResourceError where the file cannot be made."""
    try:
        recorder = Recorder(settings.output, settings.size_max_bytes)
    except OSError as error:
        raise ResourceError(f"--trace-output {settings.output}: cannot be made: {error.strerror or error}") from None
    return TraceSubscriber(settings, recorder)
