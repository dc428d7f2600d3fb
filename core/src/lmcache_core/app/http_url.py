"""Addresses of HTTP servers, as users give them."""

from __future__ import annotations

from urllib.parse import urlsplit


def is_http_url(text: str) -> bool:
    """Is it one that can be asked: with a host, with a port that is a number, without a password?"""
    try:
        parts = urlsplit(text)
        return (
            parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc and parts.port != 0
        )
    except ValueError:  # brackets that do not close, or a port that is none
        return False
