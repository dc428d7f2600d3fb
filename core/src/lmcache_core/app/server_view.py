"""What subscribers and HTTP routes of plugins see of a running server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from lmcache_core.contracts.conditions import ActiveCondition
from lmcache_core.contracts.samples import Sample, SampleKind
from lmcache_core.contracts.server_info import ServerInfo


class RunningServerView(msgspec.Struct, frozen=True):
    """A `ServerView` over functions of the server, which may be called from any thread."""

    info: ServerInfo
    sample_kinds: Sequence[SampleKind]
    read: Callable[[], Sequence[Sample]]
    tell_status: Callable[[], Mapping[str, Any]]
    tell_conditions: Callable[[], Sequence[ActiveCondition]]

    def samples(self) -> Sequence[Sample]:
        return self.read()

    def status(self) -> Mapping[str, Any]:
        return self.tell_status()

    def conditions(self) -> Sequence[ActiveCondition]:
        return self.tell_conditions()
