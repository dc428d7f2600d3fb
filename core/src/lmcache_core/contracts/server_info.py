"""What a plugin may know about the server that it runs in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerInfo:
    instance_id: str
    boot_id: str
    engine_endpoint: str
    """Where engines connect, as `tcp://host:port`."""
    http_endpoint: str | None
    chunk_tokens: int
    version: str
