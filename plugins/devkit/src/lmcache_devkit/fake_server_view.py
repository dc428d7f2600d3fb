"""A server that says what a test wants it to say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lmcache_core.contracts.conditions import ActiveCondition
from lmcache_core.contracts.counts import HandshakeCounters, PrefetchCounts, RouterCounters, SlotCounts
from lmcache_core.contracts.samples import Sample, SampleKind
from lmcache_core.contracts.server_counts import L1Counts, L2Counts, PortCounts, ServerCounts
from lmcache_core.contracts.server_view import ServerInfo, ServerView


def _info() -> ServerInfo:
    return ServerInfo("instance", "boot", "tcp://127.0.0.1:5555", None, 256, "0.0.0")


def nothing_counted() -> ServerCounts:
    """What a server counts before anything has happened."""
    slots = SlotCounts(total=0, free=0, cached=0, held=0, quarantined=0, leases=0, used_bytes=0, capacity_bytes=1)
    l1 = L1Counts("anonymous_memory", slots, 0, 0, {}, 0, {}, 0, 0, {}, 0, 0, 0, 0, None, ())
    l2 = L2Counts({}, 0, 0, PrefetchCounts(*[0] * len(PrefetchCounts._fields)), ())
    port = PortCounts(RouterCounters(), {}, {}, 0.0, 0, HandshakeCounters(), {})
    return ServerCounts(False, 0.0, {}, l1, l2, port, 0, 0.0, 0, 0, {}, 0, {}, {})


@dataclass(slots=True)
class FakeServerView:
    """A `ServerView` whose answers are attributes that a test may change: `counted`, `kinds`, `values`, `said` and `active`."""

    info: ServerInfo = field(default_factory=_info)
    counted: ServerCounts = field(default_factory=nothing_counted)
    kinds: Sequence[SampleKind] = ()
    values: Sequence[Sample] = ()
    said: Mapping[str, Any] = field(default_factory=dict)
    active: Sequence[ActiveCondition] = ()

    def counts(self) -> ServerCounts:
        return self.counted

    @property
    def sample_kinds(self) -> Sequence[SampleKind]:
        return self.kinds

    def samples(self) -> Sequence[Sample]:
        return self.values

    def status(self) -> Mapping[str, Any]:
        return self.said

    def conditions(self) -> Sequence[ActiveCondition]:
        return self.active


def no_server_yet() -> ServerView:
    """In place of a server while HTTP routes are opened.  Raises RuntimeError."""
    raise RuntimeError("context.server was asked while routes are opened; there is no server yet, ask it in the answer")
