"""A server that says what a test wants it to say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lmcache_core.contracts.conditions import ActiveCondition
from lmcache_core.contracts.samples import Sample, SampleKind
from lmcache_core.contracts.server_view import ServerInfo


def _info() -> ServerInfo:
    return ServerInfo("instance", "boot", "tcp://127.0.0.1:5555", None, 256, "0.0.0")


@dataclass(slots=True)
class FakeServerView:
    """A `ServerView` whose answers are attributes that a test may change: `kinds`, `values`, `said` and `active`."""

    info: ServerInfo = field(default_factory=_info)
    kinds: Sequence[SampleKind] = ()
    values: Sequence[Sample] = ()
    said: Mapping[str, Any] = field(default_factory=dict)
    active: Sequence[ActiveCondition] = ()

    @property
    def sample_kinds(self) -> Sequence[SampleKind]:
        return self.kinds

    def samples(self) -> Sequence[Sample]:
        return self.values

    def status(self) -> Mapping[str, Any]:
        return self.said

    def conditions(self) -> Sequence[ActiveCondition]:
        return self.active
