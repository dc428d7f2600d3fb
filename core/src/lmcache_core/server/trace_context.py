"""Which trace a request belongs to, as its engine says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

KEYS: Final = ("traceparent", "lmcache.traceparent")
"""Entries of `request_configs` that are looked at; engines pass on only those that begin with `lmcache.`."""
_CHARS: Final = 55
_CHARS_MAX: Final = 512
"""A later version of the format may say more behind what this one knows."""
_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def trace_context(request_configs: Mapping[str, Any]) -> str | None:
    """The W3C `traceparent` of a request, its first 55 characters; None where there is no valid one."""
    for key in KEYS:
        value = request_configs.get(key)
        if isinstance(value, str) and len(value) <= _CHARS_MAX and _TRACEPARENT.fullmatch(value[:_CHARS]):
            is_known = len(value) == _CHARS
            if is_known or (value[_CHARS] == "-" and not value.startswith("00")):
                return value[:_CHARS]
    return None
