"""What a plugin may know about the server that it runs in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ServerInfo:
    instance_id: str
    boot_id: str
    engine_endpoint: str
    """Where engines connect, as `tcp://host:port`."""
    http_endpoint: str | None
    chunk_tokens: int
    version: str
    endpoints: Mapping[str, str] = field(default_factory=dict)
    """Addresses of services, by name."""
