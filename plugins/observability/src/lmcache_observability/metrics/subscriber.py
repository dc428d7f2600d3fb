"""The subscriber `metrics`: gathers events, and answers a scrape, a push or the dashboard."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Final, Protocol

from lmcache_core import (
    Event,
    LookupFinished,
    LookupHashes,
    ObjectsAdded,
    ObjectsRead,
    ObjectsRemoved,
    Sample,
    ServerView,
    Subscriber,
    Subscriptions,
)
from lmcache_observability.metrics import chunk_kinds
from lmcache_observability.metrics.ceiling import ALL, Ceiling
from lmcache_observability.metrics.distributions import Distributions
from lmcache_observability.metrics.history import History
from lmcache_observability.metrics.label_names import LabelNames
from lmcache_observability.metrics.metric_kind import Family
from lmcache_observability.metrics.nearest_type import nearest_type
from lmcache_observability.metrics.own_gauges import hit_rate_families, push_family
from lmcache_observability.metrics.prometheus_text import Exposition, exposition
from lmcache_observability.metrics.request_traces import RequestTraces
from lmcache_observability.metrics.sample_families import SampleFamilies
from lmcache_observability.metrics.scrape_port import ScrapePort
from lmcache_observability.metrics.settings import MetricsSettings
from lmcache_observability.samples.catalogue import sample_kinds, samples

if TYPE_CHECKING:
    from lmcache_observability.metrics.chunks import Chunks
    from lmcache_observability.metrics.hash_batch import HashesEvent

logger = logging.getLogger(__name__)

EVENTS_MAX: Final = 1024
HASH_BYTES_MAX: Final = 1 << 22
"""What may be gathered before it is worked off, where no batch ends sooner."""
WAITING_HASH_BYTES_MAX: Final = 16 * HASH_BYTES_MAX
"""What may be gathered until numpy is imported; with more, the event thread waits for that."""
SETTLE_SECONDS: Final = 1.0
"""How long events about chunks may wait without a reader."""
_NOW: Final = "5m"


class Push(Protocol):
    """What `otlp_push.OtlpPush` is; that is imported only where metrics are pushed."""

    @property
    def pushes(self) -> Mapping[str, int]: ...

    def start(self, families: Callable[[], Sequence[Family]], target: Mapping[str, str]) -> None: ...

    def close(self) -> None: ...


class MetricsSubscriber(Subscriber):
    """Events come on one thread and are only gathered; they are processed many at a time, under a lock that each reader
    takes, too."""

    def __init__(self, settings: MetricsSettings, push: Push | None = None) -> None:
        self._labels = LabelNames(settings.label_values_max, settings.salts)
        self._traces = RequestTraces(enabled=settings.exemplars)
        self._settings = settings
        self._lock = threading.Lock()  # guards the next three, and who takes from _of_chunks
        self._distributions = Distributions(self._labels, self._traces)
        self._chunks: Chunks | None = None
        self._opening: Future[Chunks] | None = None
        self._gathered: list[Event] = []
        self._of_chunks: deque[HashesEvent | LookupFinished] = deque()
        """One thread appends, and the owner of the lock removes."""
        self._settle_at = 0.0
        self._hash_bytes = 0
        self._server: ServerView | None = None
        self._samples: SampleFamilies | None = None
        self._target: Mapping[str, str] = {}
        self.history = History()
        self._push = push
        self._port: ScrapePort | None = None

    def listen(self, port: ScrapePort) -> None:
        """Answer scrapes there once the server has begun.  It is closed with the subscriber."""
        self._port = port

    def subscriptions(self) -> Subscriptions:
        calls: dict[type[Event], Callable[[Any], None]] = dict.fromkeys(self._distributions.handlers, self._gather)
        with_hashes = (LookupHashes, ObjectsAdded, ObjectsRemoved, ObjectsRead)
        return {**dict.fromkeys(with_hashes, self._gather_hashes), **calls, LookupFinished: self._gather_answer}

    def begin(self, server: ServerView) -> None:
        info = server.info
        self._server, self._samples = server, SampleFamilies(sample_kinds(server), self._labels)
        self._traces.begin_server(info.boot_id)
        self._target = {
            "service.name": "lmcache",
            "service.instance.id": info.instance_id,
            "service.version": info.version,
        }
        self.history.start(lambda: samples(server), self._ceiling_of_late)
        if self._push:
            self._push.start(self.families, self._target)
        if self._port:
            self._port.start()
            logger.info("metrics can be scraped port=%d", self._port.port)

    def batch_done(self) -> None:
        events, self._gathered = self._gathered, []
        handlers = self._distributions.handlers
        with self._lock:
            for event in events:
                kind = type(event)
                (handlers.get(kind) or handlers[nearest_type(kind, handlers)])(event)
            if self._of_chunks and time.monotonic() >= self._settle_at:
                self._settle()

    def close(self) -> None:
        self.batch_done()
        if self._opening:
            wait([self._opening])
        self.history.close()
        if self._push:
            self._push.close()
        if self._port:
            self._port.close()

    def families(self) -> list[Family]:
        """Every metric, those without a value, too.  Any thread; one snapshot of the server's samples for all of them."""
        self._wait_opened()
        with self._lock:
            self._settle()
            of_events = self._distributions.families()
            of_events += self._chunks.families() if self._chunks else map(Family, chunk_kinds.KINDS)
            ceilings = self._chunks.ceilings(time.monotonic()) if self._chunks else []
            exemplars = self._distributions.exemplars()
        # later, so that no event counts of what is not counted yet
        found = self._samples.of(samples(self._server), exemplars) if self._samples and self._server else []
        found += [*of_events, *hit_rate_families(ceilings)]
        if self._push:
            found.append(push_family(self._push.pushes))
        return found

    def expose(self, accept: str) -> Exposition:
        """All metrics as text, in the format that an `Accept` header asks for.  Any thread."""
        return exposition(self.families(), self._target, accept)

    def ceilings(self) -> list[Ceiling]:
        """What was hit and what a cache without limits would have hit, by salt and window.  Any thread."""
        self._wait_opened()
        with self._lock:
            self._settle()
            return self._chunks.ceilings(time.monotonic()) if self._chunks else []

    def samples(self) -> Sequence[Sample]:
        """The server's, of this moment; none before it has begun.  Any thread."""
        return samples(self._server) if self._server else ()

    def _gather(self, event: Event) -> None:
        self._gathered.append(event)
        if len(self._gathered) >= EVENTS_MAX:
            self.batch_done()

    def _gather_answer(self, event: LookupFinished) -> None:
        self._of_chunks.append(event)
        self._gather(event)

    def _gather_hashes(self, event: HashesEvent) -> None:
        self._of_chunks.append(event)
        self._hash_bytes += len(event.chunk_hashes)
        if self._hash_bytes >= HASH_BYTES_MAX or len(self._of_chunks) >= EVENTS_MAX:
            with self._lock:
                self._settle()

    def _settle(self) -> None:
        """Work off what is about chunks.  Not after each batch: a handful of them costs as much as a thousand.  The caller
        holds the lock."""
        now = time.monotonic()
        self._settle_at = now + SETTLE_SECONDS
        if not self._of_chunks:
            return
        opening = self._begin_opening()
        if not opening.done() and self._hash_bytes < WAITING_HASH_BYTES_MAX:
            return
        self._chunks = opening.result()
        events = [self._of_chunks.popleft() for _ in range(len(self._of_chunks))]
        self._hash_bytes = 0
        self._chunks.take(events, now)

    def _wait_opened(self) -> None:
        """Block until what is gathered about chunks can be worked off.  Not on the event thread."""
        with self._lock:
            opening = self._begin_opening() if self._of_chunks else None
        if opening:
            wait([opening])

    def _begin_opening(self) -> Future[Chunks]:
        """numpy takes a while to import: neither in an event's call, which may not take long, nor at the start, where the
        engine port and HTTP come first.  The caller holds the lock."""
        if self._opening is None:
            thread = ThreadPoolExecutor(1, "metrics-chunks")
            self._opening = thread.submit(self._open_chunks)
            thread.shutdown(wait=False)
        return self._opening

    def _open_chunks(self) -> Chunks:
        from lmcache_observability.metrics.chunks import Chunks

        return Chunks(self._labels, self._settings)

    def _ceiling_of_late(self) -> Ceiling | None:
        return next((each for each in self.ceilings() if (each.cache_salt, each.window) == (ALL, _NOW)), None)
