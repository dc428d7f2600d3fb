"""How long chunks live in L1 and how soon they are used again, followed for a sample of them.

Which chunks are in the sample follows from their hashes, so that all that happens to one of them is seen.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from lmcache_core import LookupHashes, ObjectsAdded, ObjectsRead, ObjectsRemoved
from lmcache_observability.metrics.chunk_kinds import (
    EVICT_REUSE_GAP,
    IDLE,
    KINDS,
    LIFETIME,
    REAL_REUSE_GAP,
    REAL_REUSE_GAP_OBJECTS,
    REUSE_GAP,
)
from lmcache_observability.metrics.hash_batch import HashBatch, sample_number
from lmcache_observability.metrics.histogram import Histogram
from lmcache_observability.metrics.label_names import CACHE_SALT, LabelNames
from lmcache_observability.metrics.metric_kind import Family

FOLLOWED_MAX: Final = 16384
"""Chunks in L1 that are followed, and as many of each other sort; when more are in L1 the sample is halved."""
_MADE_ROOM: Final = ("evicted", "quota")

_ObjectKey = tuple[bytes, str, str, int]
_ChunkKey = tuple[bytes, str, str]


class ChunkLife:
    """Not thread-safe: the owner holds a lock."""

    def __init__(self, labels: LabelNames, sample_rate: float) -> None:
        self._labels = labels
        self._threshold = int(sample_rate * 2**64)
        self._of = {kind.name: Histogram(kind) for kind in KINDS}
        self._in_l1: dict[_ObjectKey, tuple[float, float]] = {}
        """When it came, and when it was last used."""
        self._left: OrderedDict[_ObjectKey, float] = OrderedDict()
        self._asked: OrderedDict[_ChunkKey, tuple[float, float]] = OrderedDict()
        """When it was last asked for, and how many objects had come into L1 by then."""
        self._came = 0.0
        """Objects that were added to L1: each sampled one represents one over the sample rate."""

    def families(self) -> list[Family]:
        return [histogram.family() for histogram in self._of.values()]

    def take(self, batch: HashBatch) -> None:
        """What happened, in its order."""
        for event, chunk_hash in batch.sample(self._threshold):
            if sample_number(chunk_hash) >= self._threshold:
                continue  # the sample was halved meanwhile
            match event:
                case LookupHashes():
                    self._ask((chunk_hash, event.model_name, event.cache_salt), event.at)
                case ObjectsAdded():
                    self._come((chunk_hash, event.model_name, event.cache_salt, event.kv_rank), event.at)
                case ObjectsRead():
                    self._read((chunk_hash, event.model_name, event.cache_salt, event.kv_rank), event.at)
                case ObjectsRemoved():
                    key = (chunk_hash, event.model_name, event.cache_salt, event.kv_rank)
                    self._leave(key, event.at, made_room=event.reason in _MADE_ROOM)

    def _ask(self, key: _ChunkKey, at: float) -> None:
        before = self._asked.pop(key, None)
        if before is not None:
            salt = (self._labels.show(CACHE_SALT, key[2]),)
            self._of[REAL_REUSE_GAP.name].record(salt, max(0.0, at - before[0]))
            self._of[REAL_REUSE_GAP_OBJECTS.name].record(salt, self._came - before[1])
        self._asked[key] = (at, self._came)
        if len(self._asked) > FOLLOWED_MAX:
            self._asked.popitem(last=False)

    def _come(self, key: _ObjectKey, at: float) -> None:
        left = self._left.pop(key, None)
        if left is not None:
            self._of[EVICT_REUSE_GAP.name].record((), max(0.0, at - left))
        self._came += 2.0**64 / self._threshold
        self._in_l1[key] = (at, at)
        while len(self._in_l1) > FOLLOWED_MAX:
            self._threshold //= 2
            self._in_l1 = {
                each: times for each, times in self._in_l1.items() if sample_number(each[0]) < self._threshold
            }

    def _read(self, key: _ObjectKey, at: float) -> None:
        if (times := self._in_l1.get(key)) is not None:
            self._of[REUSE_GAP.name].record((), max(0.0, at - times[1]))
            self._in_l1[key] = (times[0], at)

    def _leave(self, key: _ObjectKey, at: float, *, made_room: bool) -> None:
        times = self._in_l1.pop(key, None)
        if times is None or not made_room:
            return
        self._of[LIFETIME.name].record((), max(0.0, at - times[0]))
        self._of[IDLE.name].record((), max(0.0, at - times[1]))
        self._left[key] = at
        if len(self._left) > FOLLOWED_MAX:
            self._left.popitem(last=False)
