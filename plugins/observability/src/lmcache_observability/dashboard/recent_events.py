"""The last things that happened which an operator should know of."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from lmcache_core import (
    AdapterAdded,
    AdapterHealthChanged,
    AdapterRemoved,
    CacheCleared,
    Event,
    LeasesExpired,
    ObjectRejected,
    QuotaChanged,
    QuotaReached,
    SettingChanged,
    StoreRefused,
    StoresDropped,
    Subscriber,
    WorkerLeft,
    WorkerRegistered,
    parse_model_name,
)

KEPT: Final = 200
AGAIN_SECONDS: Final = 60.0
"""The same thing within this time is counted, not shown again: a flood must not push everything else out."""
_TEXT_MAX: Final = 300


class Happened(NamedTuple):
    """`times` since `first`, the last time at `at`; `text` is of the last one."""

    at: float
    first: float
    kind: str
    text: str
    times: int


class _Telling(NamedTuple):
    """What an event is about, which decides whether it is the same thing again, and a sentence for it."""

    subject: Callable[[Any], str]
    sentence: Callable[[Any], str]


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f} GiB"


def _salt(salt: str) -> str:
    return f"salt {salt!r}" if salt else "the empty salt"


def _model(name: str) -> str:
    model = parse_model_name(name)
    return f"{model.served} ({model.identity})" if model.identity else model.served


_TELLING: Final[Mapping[type[Event], _Telling]] = {
    WorkerRegistered: _Telling(
        lambda e: str(e.instance_id),
        lambda e: (
            f"worker {e.instance_id}: {_model(e.model_name)}, {e.world_size} shards, "
            f"{'shared memory' if e.shared_memory else 'in-band'}"
        ),
    ),
    WorkerLeft: _Telling(
        lambda e: str(e.instance_id), lambda e: f"worker {e.instance_id}: {_model(e.model_name)}, {e.reason}"
    ),
    ObjectRejected: _Telling(
        lambda e: f"{e.adapter} {e.outcome}",
        lambda e: f"{e.adapter}: {e.object_id} was {e.outcome} and not served: {e.reason}",
    ),
    StoresDropped: _Telling(
        lambda e: f"{e.adapter} {e.reason}",
        lambda e: f"{e.adapter or 'no adapter'}: {e.objects} objects, {_gib(e.object_bytes)}, {e.reason}",
    ),
    StoreRefused: _Telling(
        lambda e: f"{e.cache_salt} {e.reason}", lambda e: f"{_salt(e.cache_salt)}: {e.chunks} chunks, {e.reason}"
    ),
    QuotaReached: _Telling(
        lambda e: e.cache_salt,
        lambda e: f"{_salt(e.cache_salt)} uses {_gib(e.used_bytes)} of {_gib(e.limit_bytes)}",
    ),
    QuotaChanged: _Telling(
        lambda e: e.cache_salt,
        lambda e: f"{_salt(e.cache_salt)} may use {'everything' if e.limit_bytes is None else _gib(e.limit_bytes)}",
    ),
    LeasesExpired: _Telling(
        lambda e: "",
        lambda e: f"{e.dropped_slots} slots dropped, {e.quarantined_slots} in quarantine",
    ),
    CacheCleared: _Telling(lambda e: "", lambda e: f"{e.chunks} chunks{', also held ones' if e.force else ''}"),
    AdapterHealthChanged: _Telling(
        lambda e: f"{e.adapter} {e.healthy}",
        lambda e: f"{e.adapter} {'answers again' if e.healthy else 'does not answer'}",
    ),
    AdapterAdded: _Telling(lambda e: e.adapter, lambda e: f"{e.adapter} ({e.type})"),
    AdapterRemoved: _Telling(
        lambda e: e.adapter, lambda e: f"{e.adapter}{'' if e.drained else ', with stores dropped'}"
    ),
    SettingChanged: _Telling(lambda e: e.name, lambda e: f"{e.name}: {e.before} is now {e.after}"),
}


class RecentEvents(Subscriber):
    """Keeps the last `KEPT` of them.  `latest` may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._going_on: OrderedDict[tuple[str, str], Happened] = OrderedDict()  # by kind and subject
        self._over: deque[Happened] = deque(maxlen=KEPT)

    def subscriptions(self) -> Mapping[type[Event], Callable[[Any], None]]:
        return dict.fromkeys(_TELLING, self._note)

    def latest(self) -> Sequence[Happened]:
        """The newest first."""
        with self._lock:
            everything = [*self._going_on.values(), *self._over]
        return sorted(everything, key=lambda each: -each.at)[:KEPT]

    def _note(self, event: Event) -> None:
        if isinstance(event, LeasesExpired) and not event.quarantined_slots:
            return  # lookups that were not picked up: everyday
        telling = _TELLING[type(event)]
        kind = type(event).__name__
        key = kind, telling.subject(event)[:_TEXT_MAX]
        with self._lock:
            same = self._going_on.pop(key, None)
            if same and event.at - same.at > AGAIN_SECONDS:
                self._over.append(same)
                same = None
            first, times = (same.first, same.times) if same else (event.at, 0)
            self._going_on[key] = Happened(event.at, first, kind, telling.sentence(event)[:_TEXT_MAX], times + 1)
            if len(self._going_on) > KEPT:
                self._over.append(self._going_on.popitem(last=False)[1])


def open_recent_events(settings: None) -> Subscriber:
    return RecentEvents()
