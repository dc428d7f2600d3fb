"""A running server, as far as subscribers and HTTP routes of plugins may see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from lmcache_core.contracts.conditions import ActiveCondition
from lmcache_core.contracts.samples import Sample, SampleKind
from lmcache_core.contracts.server_info import ServerInfo


class ServerView(Protocol):
    """Safe from any thread.  Nothing here changes the server."""

    @property
    def info(self) -> ServerInfo: ...

    @property
    def sample_kinds(self) -> Sequence[SampleKind]:
        """Every measure that `samples` can have values of, the same while the server runs."""

    def samples(self) -> Sequence[Sample]:
        """All values, of this moment.  Takes some microseconds for each of them, 25 ms with 1,024 tenants, so that it is for
        scrapes and not for requests."""

    def status(self) -> Mapping[str, Any]:
        """What `/status` answers.  Not to be changed."""

    def conditions(self) -> Sequence[ActiveCondition]:
        """What is not as it should be now, the severest first; of none worse than INFO where the server is healthy."""
