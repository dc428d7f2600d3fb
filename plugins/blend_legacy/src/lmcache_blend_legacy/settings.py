"""The settings of the module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import Field, field_validator

from lmcache_client.engine_key import PADDING
from lmcache_core import PluginSettings

SEPARATOR_MAX: Final = 64
"""Tokens."""


def _checked(tokens: tuple[int, ...]) -> tuple[int, ...]:
    if len(tokens) > SEPARATOR_MAX or any(not 0 <= each < PADDING for each in tokens):
        raise ValueError(f"a separator has at most {SEPARATOR_MAX} token ids, from 0 to {PADDING - 1}")
    return tokens


class BlendLegacySettings(PluginSettings):
    special_tokens: tuple[int, ...] = Field((), description="Token ids of the separator between documents of a prompt.")

    _fits = field_validator("special_tokens")(_checked)


class BlendLegacyFlags(PluginSettings):
    """Blending of the first version."""

    blend_special_tokens: tuple[int, ...] = Field(
        (),
        description="Token ids of the separator between documents of a prompt, such as 674,674, for `--engine-type "
        "blend_legacy`; without it, the tokens of a request are one document.",
    )

    @field_validator("blend_special_tokens", mode="before")
    @classmethod
    def _ids(cls, value: Any) -> Any:
        texts = [value] if isinstance(value, str) else value
        if isinstance(texts, list | tuple) and all(isinstance(each, str) for each in texts):
            return tuple(part.strip() for each in texts for part in each.split(",") if part.strip())
        return value

    _fits = field_validator("blend_special_tokens")(_checked)


def apply(values: BlendLegacyFlags, given: frozenset[str]) -> Mapping[str, dict[str, Any]]:
    if not given:
        return {}
    return {"request_module:blend_legacy": {"special_tokens": values.blend_special_tokens}}
