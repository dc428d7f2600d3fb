"""What is learned from requests: how soon, and how often, objects of a kind are asked for again.

Waldspurger, Park, Garthwaite, Ahmad: Efficient MRC construction with SHARDS (FAST 2015), section 3: a sample of the
keys, chosen by a hash, has the reuse times of all; and a small shadow of it models the whole cache.
https://www.usenix.org/conference/fast15/technical-sessions/presentation/waldspurger

Watched keys are followed whether their object is in the cache or not, so an eviction that was a mistake is seen as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lmcache_policies.eviction.hit_density import BUCKETS, Table, age_bucket, hit_densities
from lmcache_policies.eviction.order_judge import OrderJudge
from lmcache_policies.eviction.watched_keys import WatchedKeys

_WATCHED: Final = 8192
_WATCHED_MAX: Final = 16_384
_SPAN: Final = 8
"""The watched sample covers the last `_SPAN` times as many requests for objects as the cache holds, or more."""
_LESSONS: Final = 8
"""How often new densities are taken while the ring goes round once."""
_KEPT: Final = 0.85
"""What remains of the counts after each."""
_SLICE: Final = 64
"""Watched keys that one request looks at while new densities are taken: no call has to look at all."""
_TURNOVER: Final = 16
"""Ages below this part of the time that least recently used keeps an object for are not distinguished."""
_SAMPLE_SHIFT: Final = 40
"""The bits of a key that say whether it is watched; no other structure looks at them first."""


class ReuseMonitor:
    """Kinds are numbered in the order in which they end a prompt."""

    def __init__(self, kinds: int) -> None:
        self.densities: Sequence[Table] | None = None
        """By kind and bucket of age; None until enough was seen."""
        self._watched = WatchedKeys(_WATCHED)
        self._judge = OrderJudge()
        self._sample_mask = 0
        self._reused = [[0.0] * BUCKETS for _ in range(kinds)]
        self._dropped = [[0.0] * BUCKETS for _ in range(kinds)]
        self._waiting = [[0.0] * BUCKETS for _ in range(kinds)]
        """Live entries that the lesson has looked at so far."""
        self._requests = 0
        """Watched ones since the last lesson."""
        self._looked_at = 0
        self._thinning = False

    @property
    def trusted(self) -> bool:
        """False while least recently used is seen to serve more."""
        return self._judge.trusted

    def is_watched(self, word: int) -> bool:
        """`word` is 64 evenly distributed bits of a key."""
        return not word >> _SAMPLE_SHIFT & self._sample_mask

    def tell(self, word: int, kind: int, now: float, served: bool, resident: int) -> None:
        """A watched key was asked for, and its object is of this kind now.  `served`: it was in the cache, which holds
        `resident` objects."""
        watched = self._watched
        shadowed = False
        if (place := watched.find(word)) >= 0:
            since, before = watched.read(place)
            self._reused[before][age_bucket(now - since)] += 1.0
            shadowed = watched.kill(place)
        if resident > _WATCHED_MAX * 2 and watched.size < _WATCHED_MAX:
            watched.grow()
        if (place := watched.reach()) >= 0:
            since, before = watched.read(place)
            self._dropped[before][age_bucket(now - since)] += 1.0
            watched.kill(place)
        watched.add(word, kind, now, max(1, resident >> self._sample_mask.bit_length()))
        self._judge.tell(served, shadowed)
        self._requests += 1
        if self._requests >= watched.size // _LESSONS - watched.size // _SLICE:
            self._learn(now, resident)

    def _learn(self, now: float, resident: int) -> None:
        """One slice of a lesson; after the last one there are new densities."""
        watched, first = self._watched, self._looked_at
        self._looked_at += _SLICE
        if not first:
            self._choose_sample(resident)
        if self._thinning:
            watched.thin_out(first, self._looked_at, self.is_watched)
        for kind, since in watched.live(first, self._looked_at):
            self._waiting[kind][age_bucket(now - since)] += 1.0
        if self._looked_at < watched.size:
            return
        ended = [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(self._dropped, self._waiting, strict=True)]
        finest = age_bucket((now - watched.shadow_since()) / _TURNOVER)
        self.densities = hit_densities(self._reused, ended, finest)
        for row in (*self._reused, *self._dropped):
            row[:] = [_KEPT * count for count in row]
        self._waiting = [[0.0] * BUCKETS for _ in self._waiting]
        self._requests = self._looked_at = 0

    def _choose_sample(self, resident: int) -> None:
        """Watch a smaller part of the keys where the ring is too short for that many objects."""
        size = _WATCHED_MAX if resident > _WATCHED_MAX * 2 else _WATCHED
        mask = (1 << (_SPAN * resident // size).bit_length()) - 1
        self._thinning = mask > self._sample_mask
        self._sample_mask = max(mask, self._sample_mask)
