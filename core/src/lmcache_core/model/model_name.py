"""Model names that say what KV bytes mean (docs/internals/engine-protocol.md, "Model names").

    llama-8b                                        a stock engine
    llama-8b##9f86d081884c7d65                      an engine that says what its bytes mean
    llama-8b##9f86d081884c7d65%%60303ae22b998861    its requests with an adapter

Keys have whole names: whatever differs in a letter shares nothing. People see the parts apart.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

_NAME: Final = re.compile(r"(.*?)(?:##([0-9a-f]{16}))?(?:%%([0-9a-f]{16}))?", re.DOTALL)
_NAMES_KEPT: Final = 4096


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
    """The name that the engine's workers have registered under: without the variant of a request."""
    variant = parse_model_name(name).variant
    return name.removesuffix(f"%%{variant}") if variant else name


def names_model(asked: str, name: str) -> bool:
    """Whether somebody who asks for the model `asked` means what `name` stands for: the served name means all of its engines,
    the name of an engine all of its requests."""
    if asked == name:
        return True
    return asked in (parse_model_name(name).served, registered_name(name))
