"""A page of metadata that is either whole or nothing: magic, fields as JSON, digest."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

PAGE_BYTES: Final = 4096
DIGEST_BYTES: Final = 16
_LENGTH = struct.Struct("<8sI")


def pack_page(magic: bytes, fields: Mapping[str, Any]) -> bytes:
    """4,096 bytes.  Raises ValueError where the fields do not fit."""
    text = json.dumps(fields, separators=(",", ":"), sort_keys=True).encode()
    room = PAGE_BYTES - DIGEST_BYTES - _LENGTH.size
    if len(text) > room:
        raise ValueError(f"{len(text)} bytes of fields do not fit into the {room} of a page of metadata")
    page = (_LENGTH.pack(magic, len(text)) + text).ljust(PAGE_BYTES - DIGEST_BYTES, b"\0")
    return page + digest(page)


def unpack_page(magic: bytes, page: bytes) -> Mapping[str, Any] | None:
    """The fields; None where this is not a whole page of this magic."""
    body, sealed = page[:-DIGEST_BYTES], page[-DIGEST_BYTES:]
    found, length = _LENGTH.unpack_from(body)
    if found != magic or digest(body) != sealed:
        return None
    fields = json.loads(body[_LENGTH.size : _LENGTH.size + length])
    return fields if isinstance(fields, dict) else None


def digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=DIGEST_BYTES).digest()
