"""How a cache salt, the name of a tenant, appears in what leaves the server."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, Literal

SaltStyle = Literal["hashed", "plain"]
_DIGEST_BYTES: Final = 8


def shown_salt(salt: str, style: SaltStyle) -> str:
    """The empty salt stays empty.  A hashed one is 16 hexadecimal digits, the same on every server."""
    if style == "plain" or not salt:
        return salt
    return blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()
