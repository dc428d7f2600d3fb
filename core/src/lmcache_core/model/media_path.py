"""The name of an object on media: a file below a root, or an object below a prefix.

The format is in docs/internals/object-format.md, "Names on media".
"""

from __future__ import annotations

import re
from typing import Final

from blake3 import blake3

from lmcache_core.model.keys import ObjectKey

SLUG_CHARACTERS: Final = 48
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def media_path(key: ObjectKey) -> str:
    """`<model slug>-<8 hex>/<salt slug>-<8 hex>/<aa>/<object id>.kv`: relative, with `/`, of safe characters only.

    The slugs are for people and the hex digits after them tell names apart that look alike; the header is the truth."""
    object_id = key.object_id.hex()
    return f"{_slug(key.space.model_name)}/{_slug(key.space.cache_salt)}/{object_id[:2]}/{object_id}.kv"


def _slug(text: str) -> str:
    # No leading dot: such names belong to the adapters (.tmp, .lock, .damaged).
    readable = _UNSAFE.sub("-", text).lstrip(".-")[:SLUG_CHARACTERS] or "none"
    return f"{readable}-{blake3(text.encode()).digest(4).hex()}"
