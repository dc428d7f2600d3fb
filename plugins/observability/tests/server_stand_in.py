"""A server's view for subscribers that run without a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lmcache_core import ActiveCondition, Reading, ReadingKind, ServerInfo


class ServerStandIn:
    info = ServerInfo("instance", "boot", "tcp://127.0.0.1:1", None, 256, "0.1.0")
    reading_kinds: Sequence[ReadingKind] = ()

    def readings(self) -> Sequence[Reading]:
        return ()

    def status(self) -> Mapping[str, Any]:
        return {}

    def conditions(self) -> Sequence[ActiveCondition]:
        return ()
