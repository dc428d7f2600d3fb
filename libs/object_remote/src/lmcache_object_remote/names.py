"""What objects are called below a prefix (docs/internals/object-format.md, "Names on media")."""

from __future__ import annotations

import re
from typing import Final

from lmcache_core import ObjectKey, media_path

_NAME: Final = re.compile(r"(?:.*/)?[^/]+-[0-9a-f]{8}/[^/]+-[0-9a-f]{8}/([0-9a-f]{2})/(\1[0-9a-f]{30})\.kv", re.DOTALL)


def object_name(prefix: str, key: ObjectKey) -> str:
    """`prefix` is put in front as it is: end it with a separator where one is wanted."""
    return prefix + media_path(key)


def object_id_of(name: str) -> bytes | None:
    """The object of this name, whatever its prefix; None where it cannot be one of ours."""
    match = _NAME.fullmatch(name)
    return bytes.fromhex(match[2]) if match else None
