"""Cache salts, the names of tenants, as people write them."""

from __future__ import annotations

from typing import Final

SALT_CHARS_MAX: Final = 128
SALT_FORBIDDEN: Final = "@/\\\0"
"""Characters that no salt has: engines and other servers build names out of salts with them."""
EMPTY_SALT_WORD: Final = "_default"
"""How the empty salt is written where a name is needed: in paths, on the command line and in JSON keys."""


def parse_salt(text: str) -> str:
    """The salt that `text` stands for.  Raises ValueError with what is wrong, without a subject."""
    if text == EMPTY_SALT_WORD:
        return ""
    if not text:
        raise ValueError(f"the empty salt is written {EMPTY_SALT_WORD}")
    if len(text) > SALT_CHARS_MAX:
        raise ValueError(f"a cache salt has at most {SALT_CHARS_MAX} characters, this one {len(text)}")
    if wrong := next((char for char in text if char in SALT_FORBIDDEN), None):
        raise ValueError(f"a cache salt holds none of @ / \\ and NUL, this one {wrong!r}")
    return text


def salt_text(salt: str) -> str:
    """How a salt is written: the inverse of `parse_salt`."""
    return salt or EMPTY_SALT_WORD
