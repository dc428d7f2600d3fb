"""What loading a prefix would take from each backend, for every length that the prefix may have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from lmcache_core import PrefetchFacts


@dataclass(frozen=True, slots=True)
class Pick:
    """One object, and the backend that it would come from."""

    number: int
    """Of its key."""
    chunk: int
    shard: int
    object_bytes: int
    adapter: int


class PrefixEnds:
    """The chunks from the first that L1 misses to the first that is not available; `loads(end)` in constant time."""

    def __init__(self, facts: PrefetchFacts, picks: Sequence[Pick], adapters: int) -> None:
        """One pick for each chunk of a shard that can be loaded."""
        wanted = {(each.chunk, each.shard) for each in facts.wanted}
        gaps = wanted - {(pick.chunk, pick.shard) for pick in picks}
        self.first: Final = min(chunk for chunk, _ in wanted)
        self.end: Final = min((chunk for chunk, _ in gaps), default=max(chunk for chunk, _ in wanted) + 1)
        """Behind the last chunk that is of use."""
        length = max(0, self.end - self.first)
        self._sums: Final = []
        for adapter in range(adapters):
            rows = []
            for window in sorted(set(facts.windows), key=lambda window: -1 if window is None else window):
                count, size = [0] * length, [0] * length
                for pick in picks:
                    if (
                        pick.adapter == adapter
                        and pick.chunk < self.end
                        and pick.shard < len(facts.windows)
                        and facts.windows[pick.shard] == window
                    ):
                        count[pick.chunk - self.first] += 1
                        size[pick.chunk - self.first] += pick.object_bytes
                rows.append((window, list(accumulate(count, initial=0)), list(accumulate(size, initial=0))))
            self._sums.append(rows)

    def loads(self, adapter: int, end: int) -> tuple[int, int]:
        """Objects and bytes that a prefix of `end` chunks takes from this backend."""
        objects = size = 0
        place = end - self.first
        for window, counts, sizes in self._sums[adapter]:
            since = 0 if window is None else max(0, place - window)
            objects += counts[place] - counts[since]
            size += sizes[place] - sizes[since]
        return objects, size
