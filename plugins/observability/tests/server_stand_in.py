"""A server's view for subscribers that run without a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lmcache_core import ActiveCondition, Sample, SampleKind, ServerCounts, ServerInfo
from lmcache_devkit.fake_server_view import nothing_counted


class ServerStandIn:
    info = ServerInfo("instance", "boot", "tcp://127.0.0.1:1", None, 256, "0.1.0")
    sample_kinds: Sequence[SampleKind] = ()

    def counts(self) -> ServerCounts:
        return nothing_counted()

    def samples(self) -> Sequence[Sample]:
        return ()

    def status(self) -> Mapping[str, Any]:
        return {}

    def conditions(self) -> Sequence[ActiveCondition]:
        return ()
