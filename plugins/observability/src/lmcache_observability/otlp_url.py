"""Where an OTLP/HTTP collector takes a signal."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit


def otlp_url(endpoint: str, signal: Literal["traces", "metrics"]) -> str:
    """`http://host:4318` becomes `http://host:4318/v1/traces`; an endpoint that names the signal already is left as it is.

    Raises ValueError, without a subject, for what is not the address of a collector."""
    try:
        parts = urlsplit(endpoint)
        port_is_wrong = parts.port == 0
    except ValueError:
        raise ValueError("it is not a URL; expected one such as http://collector:4318") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port_is_wrong:
        raise ValueError("it is not the URL of an OTLP/HTTP collector; expected one such as http://collector:4318")
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            "it holds a user name or a password; put them into the variable OTEL_EXPORTER_OTLP_HEADERS instead"
        )
    if parts.query or parts.fragment:
        raise ValueError("it has a '?' or '#' part, which no collector's address has")
    path = parts.path.rstrip("/")
    return endpoint if path.endswith(f"/v1/{signal}") else f"{parts.scheme}://{parts.netloc}{path}/v1/{signal}"
