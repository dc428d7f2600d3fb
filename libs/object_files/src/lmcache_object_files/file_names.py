"""Which files below a root are objects by their names (docs/internals/object-format.md, "Names on media")."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_NAMESPACE = re.compile(r".+-[0-9a-f]{8}")
_FAN_OUT = re.compile(r"[0-9a-f]{2}")
_OBJECT = re.compile(r"([0-9a-f]{32})\.kv")

DIRECTORY_LEVELS: Final = (_NAMESPACE, _NAMESPACE, _FAN_OUT)
"""What directories are called, level by level below the root; objects are in those of the last."""


class FoundFile(NamedTuple):
    """Something below the root; `object_id` is None where it cannot be an object of ours."""

    path: str
    object_id: bytes | None
    size: int


def object_id_of(name: str, fan_out: str) -> bytes | None:
    """The object that a file of this name in this directory of the last level is; None where it is none of ours."""
    match = _OBJECT.fullmatch(name)
    return bytes.fromhex(match[1]) if match and name.startswith(fan_out) else None
