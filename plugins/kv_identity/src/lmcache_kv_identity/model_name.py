"""The model name that an engine sends: its served name, a fingerprint of what decides the bytes of its KV cache, and one
of what a request adds to that.

    llama-8b##9f86d081884c7d65                      an engine
    llama-8b##9f86d081884c7d65%%60303ae22b998861    its requests with a LoRA adapter

The server compares whole names and nothing else, so that engines share KV exactly when all of their facts are equal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
from blake3 import blake3

Fact = bool | int | float | str | None | Sequence["Fact"] | Mapping[str, "Fact"]
"""A value that JSON has. Lists and tuples are equal, and the order of a mapping's keys does not count."""

_FACTS_DOMAIN: Final = b"lmcache-identity-1"
_DIGEST_BYTES: Final = 8
_NAME: Final = re.compile(r"(.*?)(?:##([0-9a-f]{16}))?(?:%%([0-9a-f]{16}))?", re.DOTALL)


class ModelName(NamedTuple):
    """A model name in its parts; `str` joins them."""

    served: str
    """As users know the model."""
    identity: str = ""
    """16 hex digits of the engine's facts; empty: the engine does not say (a stock connector)."""
    variant: str = ""
    """16 hex digits of what a request adds (an adapter); empty: nothing."""

    def __str__(self) -> str:
        identity = self.identity and f"##{self.identity}"
        variant = self.variant and f"%%{self.variant}"
        return f"{self.served}{identity}{variant}"


def parse_model_name(name: str) -> ModelName:
    """Split a name that `ModelName` has joined. Any other text is a served name as a whole."""
    found = _NAME.fullmatch(name)
    assert found is not None, "the pattern matches every text"
    return ModelName(found[1], found[2] or "", found[3] or "")


def with_variant(name: str, variant: str) -> str:
    """The name of requests that add something to what their engine's name says; without a variant it is the engine's."""
    return f"{name}%%{variant}" if variant else name


def fingerprint(facts: Mapping[str, Fact]) -> str:
    """16 hex digits of these facts; the same in every process and on every machine. Raises TypeError for a value that is
    no `Fact`: its text might name an address in memory, and differ each time."""
    try:
        encoded = msgspec.json.encode(facts, order="deterministic", enc_hook=_refuse)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise TypeError(f"facts of a model are values as JSON has them: {error}") from None
    return blake3(_FACTS_DOMAIN + encoded).hexdigest(_DIGEST_BYTES)


def _refuse(value: object) -> Fact:
    raise TypeError(f"{type(value).__name__} is none")
