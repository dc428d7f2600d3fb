"""The model name that an engine sends: its served name, a fingerprint of what decides the bytes of its KV cache, and one
of what a request adds to that.

    llama-8b##9f86d081884c7d65                      an engine
    llama-8b##9f86d081884c7d65##blend               what its blends computed over KV that is not exact
    llama-8b##9f86d081884c7d65##segments            documents of its prompts, each computed for itself
    llama-8b##9f86d081884c7d65%%60303ae22b998861    its requests with a LoRA adapter
    llama-8b##9f86d081884c7d65##blend%%1b4f0e9851971998    documents of its prompts, computed behind other tokens

The server compares whole names, so that engines share KV exactly when all of their facts are equal. Names are made here and
split by the server (`lmcache_core.parse_model_name`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from blake3 import blake3

Fact = bool | int | float | str | None | Sequence["Fact"] | Mapping[str, "Fact"]
"""A value that JSON has. Lists and tuples are equal, and the order of a mapping's keys does not count."""

_FACTS_DOMAIN: Final = b"lmcache-identity-1"
_DIGEST_BYTES: Final = 8


def engine_name(served: str, facts: Mapping[str, Fact]) -> str:
    """The name of an engine: `served`, as users know the model, and the fingerprint of its facts. Raises TypeError as
    `fingerprint` does."""
    return f"{served}##{fingerprint(facts)}"


def with_variant(name: str, variant: str) -> str:
    """The name of requests that add something to what their engine's name says: `variant` is a fingerprint of that, or empty,
    and the name is the engine's."""
    return f"{name}%%{variant}" if variant else name


def approximate_name(name: str) -> str:
    """The name of KV that was computed over other KV than that of its own tokens: only requests that blend look it up."""
    return f"{name}##blend"


def segment_name(name: str) -> str:
    """The name of KV of documents that were computed each for itself, `name` being an engine's: no prompt's KV as a whole."""
    return f"{name}##segments"


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
