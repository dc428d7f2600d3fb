"""A running server, as far as plugins may see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from lmcache_core.contracts.conditions import ActiveCondition
from lmcache_core.contracts.samples import Sample, SampleKind

if TYPE_CHECKING:
    from lmcache_core.contracts.server_counts import ServerCounts


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a plugin may know about the server that it runs in."""

    instance_id: str
    boot_id: str
    engine_endpoint: str
    """Where engines connect, as `tcp://host:port`."""
    http_endpoint: str | None
    chunk_tokens: int
    version: str
    endpoints: Mapping[str, str] = field(default_factory=dict)
    """Addresses of services, by name."""


class ServerView(Protocol):
    """For subscribers and HTTP routes.  Safe from any thread.  Nothing here changes the server."""

    @property
    def info(self) -> ServerInfo: ...

    def counts(self) -> ServerCounts:
        """What the server counts, as of now.  Takes milliseconds with many tenants: for scrapes, not for requests."""

    @property
    def sample_kinds(self) -> Sequence[SampleKind]:
        """The metrics of its services, the same while the server runs."""

    def samples(self) -> Sequence[Sample]:
        """The values of these, as of now."""

    def status(self) -> Mapping[str, Any]:
        """What `/status` answers.  Not to be changed."""

    def conditions(self) -> Sequence[ActiveCondition]:
        """What is not as it should be now, the severest first; of none worse than INFO where the server is healthy."""
