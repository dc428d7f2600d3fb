"""Names of models and of tenants, as engines send them and as people write them.

A model name says what KV bytes mean (docs/internals/engine-protocol.md, "Model names"):

    llama-8b                                        a stock engine
    llama-8b##9f86d081884c7d65                      an engine that says what its bytes mean
    llama-8b##9f86d081884c7d65##blend               what it has computed over KV that is not exact
    llama-8b##9f86d081884c7d65##segments            documents that it has computed each for itself: a served name as a whole
    llama-8b##9f86d081884c7d65%%60303ae22b998861    its requests with an adapter
    llama-8b##9f86d081884c7d65##ext-2c26b46b68ffc68f    those that name chunks by hashes of the engine's own

Keys have whole names: names that differ in a letter share nothing.  People see the parts apart.  A cache salt is the name of a
tenant.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

SALT_CHARS_MAX: Final = 128
SALT_FORBIDDEN: Final = "@/\\\0"
"""Characters that no salt has: engines and other servers build names out of salts with them."""
EMPTY_SALT_WORD: Final = "_default"
"""How the empty salt is written where a name is needed: in paths, on the command line and in JSON keys."""
_NAME: Final = re.compile(
    r"(.*?)(?:##([0-9a-f]{16}))?(?:##blend)?(?:%%([0-9a-f]{16}))?(?:##ext-[0-9a-f]{16})?", re.DOTALL
)
_NAMES_KEPT: Final = 4096


def parse_salt(text: str) -> str:
    """The salt that `text` names.  Raises ValueError with what is wrong, without a subject."""
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


class ModelName(NamedTuple):
    """A model name in its parts."""

    served: str
    """As users know the model; the whole name where it says no more."""
    identity: str = ""
    """16 hex digits of what decides an engine's KV bytes; empty: the engine does not say."""
    variant: str = ""
    """16 hex digits of what a request adds to that; empty: nothing."""


@lru_cache(_NAMES_KEPT)
def parse_model_name(name: str) -> ModelName:
    """Split a model name.  Any text is one."""
    found = _NAME.fullmatch(name)
    assert found is not None, "the pattern matches every text"
    return ModelName(found[1], found[2] or "", found[3] or "")


@lru_cache(_NAMES_KEPT)
def registered_name(name: str) -> str:
    """The name that the engine's workers have registered under: without the variant and the hashes of a request, and what is
    approximate."""
    served, identity, _ = parse_model_name(name)
    return f"{served}##{identity}" if identity else served


def names_model(asked: str, name: str) -> bool:
    """Does a request for the model `asked` include the model `name`?  The served name includes all of its engines, the name
    of an engine all of its requests."""
    if asked == name:
        return True
    return asked in (parse_model_name(name).served, registered_name(name))
