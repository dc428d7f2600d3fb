"""Key figures of the last hour, for curves without a database beside the server."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from lmcache_core import Sample
from lmcache_observability.metrics.ceiling import Ceiling

logger = logging.getLogger(__name__)

STEP_SECONDS: Final = 5.0
SECONDS: Final = 3600.0

Totals = Mapping[str, float]
"""Sums by the name of a measure, and by `name{value}` for one value of one of its labels."""


class Moment(NamedTuple):
    at: float
    """Seconds since the epoch."""
    figures: tuple[float | None, ...]
    """In the order of `FIGURES`; None where there was nothing to measure."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One curve: a gauge as it is, a counter per second, or one counter's growth as a share of another's."""

    name: str
    of: str
    """The measure, by its key in `Totals`."""
    per: str = ""
    """`second`, or the counter that it is a share of; empty for a gauge."""


CEILING: Final = "ceiling"
"""Not a sample: what a cache without limits would have hit in the last minutes."""
ACTUAL: Final = "actual"
"""What this one hit of the same chunks: to be compared with `CEILING`, which rates of single steps are not."""
_LARGEST: Final = frozenset({"lmcache.l2.store.oldest_age", "lmcache_mp.l1_usage_ratio"})
"""Of these, the largest value counts, and not the sum."""
_HIT, _REQUESTED = "lmcache_mp.lookup_hit", "lmcache_mp.lookup_requested"

FIGURES: Final = (
    Figure("hit_ratio", _HIT, _REQUESTED),
    Figure("hit_ratio_l1", "lmcache_mp.lookup_hit_l1", _REQUESTED),
    Figure("hit_ratio_l2", "lmcache_mp.lookup_hit_l2", _REQUESTED),
    Figure("recent_hit_ratio", ACTUAL),
    Figure("recent_hit_ratio_ceiling", CEILING),
    Figure("lookups_per_second", "lmcache_mp.lookups", "second"),
    Figure("requested_tokens_per_second", _REQUESTED, "second"),
    Figure("requests_per_second", "lmcache.requests", "second"),
    Figure("request_errors_per_second", "lmcache.requests{error}", "second"),
    Figure("requests_waiting", "lmcache.requests.waiting"),
    Figure("oldest_request_seconds", "lmcache.requests.oldest_age"),
    Figure("l1_used_ratio", "lmcache_mp.l1_usage_ratio"),
    Figure("l1_used_bytes", "lmcache_mp.l1_memory_usage_bytes"),
    Figure("l1_objects", "lmcache.l1.objects"),
    Figure("l1_written_bytes_per_second", "lmcache.l1.io{write}", "second"),
    Figure("l1_read_bytes_per_second", "lmcache.l1.io{read}", "second"),
    Figure("l1_evicted_objects_per_second", "lmcache_mp.l1_evicted", "second"),
    Figure("l1_refused_chunks_per_second", "lmcache_mp.l1_allocation_failure", "second"),
    Figure("l2_written_bytes_per_second", "lmcache.l2.io{write}", "second"),
    Figure("l2_read_bytes_per_second", "lmcache.l2.io{read}", "second"),
    Figure("l2_used_bytes", "lmcache_mp.l2_usage_bytes"),
    Figure("l2_stores_pending_bytes", "lmcache.l2.store.pending.size"),
    Figure("l2_oldest_store_seconds", "lmcache.l2.store.oldest_age"),
    Figure("l2_dropped_objects_per_second", "lmcache.l2.store.ended{dropped}", "second"),
    Figure("prefetches_active", "lmcache_mp.active_prefetch_jobs"),
    Figure("workers", "lmcache.workers"),
    Figure("cpu_cores", "process.cpu.time", "second"),
    Figure("memory_bytes", "process.memory.usage"),
    Figure("events_dropped_per_second", "lmcache_mp.event_bus.dropped_events_total", "second"),
)


class History:
    """The thread that takes figures is its own; reading them is for any."""

    def __init__(self) -> None:
        self._moments: deque[Moment] = deque(maxlen=int(SECONDS / STEP_SECONDS))
        self._before: tuple[float, Totals] | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, read: Callable[[], Sequence[Sample]], ceiling: Callable[[], Ceiling | None]) -> None:
        """Take the figures of `read` every `STEP_SECONDS` from now on."""
        self._thread = threading.Thread(target=self._run, args=(read, ceiling), name="metrics-history", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join(STEP_SECONDS)

    def moments(self, seconds: float = SECONDS) -> list[Moment]:
        """Those of the last `seconds`, oldest first."""
        since = time.time() - seconds
        return [moment for moment in self._moments.copy() if moment.at >= since]

    def take(self, at: float, samples: Sequence[Sample], ceiling: Ceiling | None) -> None:
        """Add one moment; nothing the first time, because rates need two."""
        now = totals(samples)
        if ceiling is not None:
            now = {**now, CEILING: ceiling.ceiling, ACTUAL: ceiling.actual}
        if self._before and at > self._before[0]:
            seconds, before = at - self._before[0], self._before[1]
            self._moments.append(Moment(at, tuple(_value(figure, before, now, seconds) for figure in FIGURES)))
        self._before = at, now

    def _run(self, read: Callable[[], Sequence[Sample]], ceiling: Callable[[], Ceiling | None]) -> None:
        while not self._stop.wait(STEP_SECONDS):
            try:
                self.take(time.time(), read(), ceiling())
            except Exception:  # of the server's parts; the next moment may be fine
                logger.exception("no figures for the history")


def totals(samples: Sequence[Sample]) -> Totals:
    """Only of what `FIGURES` is made of."""
    found: dict[str, float] = {}
    for name, value, labels, _ in samples:
        for key in _KEYS.get(name, ()):
            if key.value and key.value not in labels:
                continue
            before = found.get(key.text, 0.0)  # no measure is negative
            found[key.text] = max(before, value) if name in _LARGEST else before + value
    return found


class _Key(NamedTuple):
    text: str
    value: str
    """Of a label; empty where all values count."""


def _keys() -> dict[str, list[_Key]]:
    """What is added up, by the name of the measure."""
    found: dict[str, list[_Key]] = {}
    for text in dict.fromkeys(key for figure in FIGURES for key in (figure.of, figure.per) if key):
        name, _, value = text.partition("{")
        found.setdefault(name, []).append(_Key(text, value.rstrip("}")))
    return found


_KEYS: Final = _keys()


def _value(figure: Figure, before: Totals, now: Totals, seconds: float) -> float | None:
    if not figure.per:
        return now.get(figure.of)
    if figure.of not in now:
        return None
    grown = now[figure.of] - before.get(figure.of, 0.0)
    if figure.per == "second":
        return grown / seconds
    of = now.get(figure.per, 0.0) - before.get(figure.per, 0.0)
    return grown / of if of else None
