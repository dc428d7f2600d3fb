"""The settings of blending."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import Field

from lmcache_core import PluginSettings

CHUNKS_MAX: Final = 10_000_000
CHUNK_SIZE: Final = "blend_chunk_size"
"""By this name a member of a fleet that blends says its chunk size."""
LOOKUP_PATH: Final = "/directory/blend-lookup"
"""Of a coordinator."""
TOKENS_MAX: Final = 1 << 17
"""Of a prompt, that a coordinator looks at."""


class BlendSettings(PluginSettings):
    index_chunks: int = Field(1 << 20, ge=16, le=CHUNKS_MAX)
    probe_stride: int = Field(1, ge=1, le=65_536)


class BlendFlags(PluginSettings):
    """Blending."""

    blend_index_chunks: int = Field(
        1 << 20,
        ge=16,
        le=CHUNKS_MAX,
        description="Chunks that `--engine-type blend` can find by their tokens, at most 96 bytes each; of more, those that "
        "were not found for longest are forgotten.",
    )
    blend_probe_stride: int = Field(
        1,
        ge=1,
        le=65_536,
        description="Tokens between the places of a prompt at which `--engine-type blend` looks for stored chunks.",
    )


def apply(values: BlendFlags, given: frozenset[str]) -> Mapping[str, dict[str, Any]]:
    if not given:
        return {}
    return {
        "request_module:blend": {
            "index_chunks": values.blend_index_chunks,
            "probe_stride": values.blend_probe_stride,
        }
    }
