"""Which of two orders of eviction serves more requests: the one in use, or least recently used?

Qureshi, Jaleel, Patt, Steely, Emer: Adaptive insertion policies for high performance caching (ISCA 2007), section 5,
https://doi.org/10.1145/1250662.1250709

Set duelling gives each of two policies a few sets of the cache, and the winner the rest.  Here only one of the two has
a cache; the other one is a shadow of keys.  Requests that both serve, or neither, say nothing.  Of the others a sign
test asks whether chance would divide them so, and who loses pauses, each time for longer.  The test that forgets and the
pauses are our own.
"""

from __future__ import annotations

from math import sqrt
from typing import Final

_EVERY: Final = 32
"""Requests between two judgements."""
_KEPT: Final = 0.9
"""What remains of the scores after each."""
_DEVIATIONS: Final = 1.5
_MARGIN: Final = 1.0
_SHORTEST_PAUSE: Final = 32
_LONGEST_PAUSE: Final = 1024
"""In judgements."""


class OrderJudge:
    def __init__(self) -> None:
        self.trusted = True
        """Is the order in use to be used?  Otherwise it should be least recently used for now."""
        self._shadow_only = 0.0
        self._ours_only = 0.0
        self._requests = 0
        self._pause = _SHORTEST_PAUSE
        self._pause_left = 0

    def tell(self, ours: bool, shadow: bool) -> None:
        """One request: did the cache serve it, and would least recently used have?"""
        if shadow and not ours:
            self._shadow_only += 1.0
        elif ours and not shadow:
            self._ours_only += 1.0
        self._requests += 1
        if self._requests == _EVERY:
            self._requests = 0
            self._judge()

    def _judge(self) -> None:
        ours, shadow = self._ours_only, self._shadow_only
        if self._pause_left:
            self._pause_left -= 1
        elif shadow - ours > _DEVIATIONS * sqrt(shadow + ours) + _MARGIN:
            self._pause_left = self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        elif ours > shadow:
            self._pause = max(_SHORTEST_PAUSE, self._pause - 1)
        if self.trusted == bool(self._pause_left):
            self.trusted = not self.trusted
            self._ours_only = self._shadow_only = 0.0
        self._ours_only *= _KEPT
        self._shadow_only *= _KEPT
