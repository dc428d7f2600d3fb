"""How long blocks of engines' own caches hold what they hold, from what their schedulers report.

A scheduler reports the blocks that it gives away, not those that a request finds in the engine's prefix cache, and nothing when
a block is evicted: that is seen when the block is given away for other tokens.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from typing import Any, Final

from lmcache_core import BlocksAllocated, Event, RequestEnded
from lmcache_observability.metrics.chunk_kinds import LIFE_SECONDS
from lmcache_observability.metrics.histogram import Histogram
from lmcache_observability.metrics.label_names import LabelNames
from lmcache_observability.metrics.metric_kind import Family, LabelValues, MetricKind, MetricType

BLOCKS_MAX: Final = 131_072
"""Blocks that are followed, of all engines together; later ones are not."""
REQUESTS_MAX: Final = 16_384
"""Requests whose end is waited for; of more, the oldest count as ended."""
_HASH_BYTES: Final = 8
_ID_BYTES: Final = 8


def _life(name: str, description: str) -> MetricKind:
    return MetricKind(name, "s", description, MetricType.HISTOGRAM, ("instance_id", "model_name"), LIFE_SECONDS)


LIFETIME: Final = _life("lmcache_mp.l0_block_lifetime", "How long a block of an engine held the same tokens")
IDLE: Final = _life(
    "lmcache_mp.l0_block_idle_before_evict",
    "How long no request had used a block of an engine when it got other tokens",
)
REUSE_GAP: Final = _life(
    "lmcache_mp.l0_block_reuse_gap", "Time between the end of the last request of a block of an engine and its next use"
)
KINDS: Final = (LIFETIME, IDLE, REUSE_GAP)

_BlockKey = tuple[int, str, int]
"""Scheduler, model and block."""


class _Block:
    __slots__ = ("came", "content", "requests", "used")

    def __init__(self, content: bytes, request_id: str, at: float) -> None:
        self.content = content
        self.came = self.used = at
        self.requests = {request_id}


class BlockLife:
    """Not thread-safe: the owner holds a lock."""

    def __init__(self, labels: LabelNames) -> None:
        self._show = labels.show
        self._lifetime, self._idle, self._reuse = (Histogram(kind) for kind in KINDS)
        self._blocks: dict[_BlockKey, _Block] = {}
        self._of_request: dict[str, set[_BlockKey]] = {}
        self.handlers: Mapping[type[Event], Callable[[Any], None]] = {
            BlocksAllocated: self._allocated,
            RequestEnded: self._ended,
        }

    def families(self) -> list[Family]:
        return [histogram.family() for histogram in (self._lifetime, self._idle, self._reuse)]

    def _allocated(self, event: BlocksAllocated) -> None:
        labels = (self._show("instance_id", str(event.process_id)), self._show("model_name", event.model_name))
        whole = len(event.block_ids) // _ID_BYTES * _ID_BYTES
        for place, number in enumerate(array("q", event.block_ids[:whole])):
            content = event.content_hashes[place * _HASH_BYTES : (place + 1) * _HASH_BYTES]
            self._take((event.process_id, event.model_name, number), content, event.request_id, event.at, labels)
        while len(self._of_request) > REQUESTS_MAX:
            self._end(next(iter(self._of_request)), event.at)

    def _take(self, key: _BlockKey, content: bytes, request_id: str, at: float, labels: LabelValues) -> None:
        block = self._blocks.get(key)
        if block is not None and block.content == content:
            if not block.requests:
                self._reuse.record(labels, max(0.0, at - block.used))
            block.requests.add(request_id)
            block.used = at
        elif block is not None or len(self._blocks) < BLOCKS_MAX:
            if block is not None:
                self._lifetime.record(labels, max(0.0, at - block.came))
                self._idle.record(labels, max(0.0, at - block.used))
                for other in block.requests:
                    self._of_request.get(other, set()).discard(key)
            self._blocks[key] = _Block(content, request_id, at)
        else:
            return
        self._of_request.setdefault(request_id, set()).add(key)

    def _ended(self, event: RequestEnded) -> None:
        self._end(event.request_id, event.at)

    def _end(self, request_id: str, at: float) -> None:
        for key in self._of_request.pop(request_id, ()):
            block = self._blocks[key]
            block.requests.discard(request_id)
            block.used = at
