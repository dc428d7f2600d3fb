"""What a cache without limits would have hit, beside what this one hit: per cache salt and over all.

A chunk that is asked for would have been hit if it was asked for or stored before, within the retention, whether the
window that it is counted in had begun by then or not.  A chunk's hash names all of the prompt before it, so that a chunk
that was seen has a prefix that was seen, and nothing else has to be known of prompts.  What was hit counts as seen: L2 may
hold chunks of an earlier run.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np

from lmcache_core import LookupFinished, LookupHashes, ObjectsAdded, ObjectsRead, ObjectsRemoved
from lmcache_observability.metrics.ceiling import ALL, Ceiling
from lmcache_observability.metrics.distinct_chunks import DistinctChunks, Marks, Words, marks
from lmcache_observability.metrics.hash_batch import HashBatch
from lmcache_observability.metrics.hit_rate_window import HitRateWindow
from lmcache_observability.metrics.label_names import CACHE_SALT, OTHER, LabelNames

_PRECISION_OF_ALL: Final = 18
_PRECISION_OF_ONE: Final = 14
_PENDING_MAX: Final = 2048
_PENDING_CHUNKS_MAX: Final = 1 << 20
"""Lookups that have no answer yet, and their chunks; beyond it the oldest is forgotten."""

_Request = tuple[str, str, str]
"""Model, salt and request id: engines may choose the same id."""


class HitRateCeiling:
    """Not thread-safe: the owner holds a lock.  Between `begin` and `end` it gets the events of a batch."""

    def __init__(self, labels: LabelNames, salts_max: int, retention_seconds: float) -> None:
        self._labels = labels
        self._salts_max = salts_max
        self._retention = retention_seconds
        self._generation_ends: float | None = None
        self._tenants = {ALL: _Tenant(_PRECISION_OF_ALL)}
        self._words: Iterator[Words] = iter(())
        self._seen: list[_Seen] = []
        self._pending: OrderedDict[_Request, Words] = OrderedDict()
        self._pending_chunks = 0
        self._asked: list[_Request] = []

    @property
    def state_bytes(self) -> int:
        return sum(tenant.state_bytes for tenant in self._tenants.values())

    def begin(self, batch: HashBatch) -> None:
        """Its events come next, in the batch's order, and others among them."""
        self._words = batch.words()

    def asked(self, event: LookupHashes) -> None:
        words, request = next(self._words), _request(event)
        self._forget(request)
        self._pending[request] = words
        self._asked.append(request)
        self._pending_chunks += len(words)
        while self._pending_chunks > _PENDING_CHUNKS_MAX or len(self._pending) > _PENDING_MAX:
            self._forget(next(iter(self._pending)))

    def answered(self, event: LookupFinished) -> None:
        words = self._forget(_request(event))
        if words is not None:
            self._seen.append(_Seen(event.cache_salt, words, min(event.hit_chunks, len(words)), is_lookup=True))

    def stored(self, event: ObjectsAdded) -> None:
        """What an engine made while it answered is hit when the answer comes back as part of the next prompt."""
        words = next(self._words)
        self._seen.append(_Seen(event.cache_salt, words, len(words), is_lookup=False))

    def passed(self, event: ObjectsRead | ObjectsRemoved) -> None:
        """Chunks that were asked for or stored before."""
        next(self._words)

    def end(self, now: float) -> None:
        """All events of the batch were handled; they count as of `now`, seconds of a clock that does not go back."""
        for request in self._asked:
            if request in self._pending:  # maybe for long, and the rest of the batch need not be kept
                self._pending[request] = self._pending[request].copy()
        self._asked.clear()
        if not self._seen:
            return
        seen, self._seen = self._seen, []
        self._age(now)
        chunks = marks(np.concatenate([each.words for each in seen]))
        self._tenants[ALL].count(seen, chunks, now)
        by_name: dict[str, list[int]] = {}
        for index, each in enumerate(seen):
            by_name.setdefault(self._name(each.cache_salt), []).append(index)
        for name, own in by_name.items():
            tenant = self._tenants.get(name)
            if tenant is None:
                tenant = self._tenants[name] = _Tenant(_PRECISION_OF_ONE)
            if len(by_name) == 1:
                tenant.count(seen, chunks, now)
            else:
                ends = np.cumsum([len(each.words) for each in seen])
                parts = [np.arange(ends[index] - len(seen[index].words), ends[index]) for index in own]
                tenant.count([seen[index] for index in own], chunks.at(np.concatenate(parts)), now)

    def ceilings(self, now: float) -> list[Ceiling]:
        """Of all salts first; then each salt by itself, as far as there is room, and the others together."""
        return [
            Ceiling(salt, window, rates.requested, rates.actual, rates.ceiling)
            for salt, tenant in self._tenants.items()
            for window, rates in tenant.window.rates(now).items()
        ]

    def _name(self, salt: str) -> str:
        name = self._labels.show(CACHE_SALT, salt)
        has_room = name in self._tenants or len(self._tenants) <= self._salts_max
        return name if has_room and name != ALL else OTHER  # a tenant may call itself like all of them

    def _age(self, now: float) -> None:
        if self._generation_ends is None:
            self._generation_ends = now + self._retention
        elif now >= self._generation_ends:
            self._generation_ends = now + self._retention
            for tenant in self._tenants.values():
                tenant.next_generation()

    def _forget(self, request: _Request) -> Words | None:
        words = self._pending.pop(request, None)
        if words is not None:
            self._pending_chunks -= len(words)
        return words


def _request(event: LookupHashes | LookupFinished) -> _Request:
    return event.model_name, event.cache_salt, event.request_id


class _Seen(NamedTuple):
    """Chunks that came by together.  The first `hit` of them cannot be new."""

    cache_salt: str
    words: Words
    hit: int
    is_lookup: bool


class _Tenant:
    __slots__ = ("_known", "window")

    def __init__(self, precision: int) -> None:
        self._known = DistinctChunks(precision)
        self.window = HitRateWindow()

    @property
    def state_bytes(self) -> int:
        return self._known.state_bytes + self.window.state_bytes

    def next_generation(self) -> None:
        self._known.next_generation()

    def count(self, seen: Sequence[_Seen], chunks: Marks, now: float) -> None:
        ends = list(accumulate(len(each.words) for each in seen))
        new = 0.0
        for index, weight in self._known.add(chunks):
            each = bisect_right(ends, index)
            begin = ends[each] - len(seen[each].words)
            if index - begin >= seen[each].hit:
                new += weight
        lookups = [each for each in seen if each.is_lookup]
        if lookups:
            self.window.add(now, sum(len(each.words) for each in lookups), sum(each.hit for each in lookups), new)
