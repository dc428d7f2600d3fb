"""What one client may cost the admin API."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Whoever goes beyond one of them is refused with a problem, or where that cannot be sent any more, hung up on."""

    header_bytes: int = 16 * 1024
    """Request line and headers together."""
    header_count: int = 100
    target_bytes: int = 8 * 1024
    """Path and query, as they are sent."""
    request_seconds: float = 10.0
    """From a connection's first moment, or a further request's first byte, to the last byte of its body."""
    stalled_seconds: float = 20.0
    """How long a client may leave an answer unread."""
    plugin_seconds: float = 30.0
    """How long a plugin's route may take to answer."""
    connections: int = 256
    """Beyond them, the one that has kept the server waiting for a request for longest is hung up on."""
    requests: int = 64
    """That are being answered at once."""
