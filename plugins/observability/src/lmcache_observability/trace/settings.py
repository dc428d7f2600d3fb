"""Settings of the subscriber `trace`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from lmcache_core import PluginSettings
from lmcache_observability.shown_salt import SaltStyle


class TraceSettings(PluginSettings):
    """A recording of what the server is asked, for `lmcache trace`."""

    level: Literal["storage", "events"] = Field(
        "storage", description="Lookups, stores, retrieves and ends of requests, or all events as they are."
    )
    output: Path = Field(
        Path(),
        description="File to record to; where it is there already, another one beside it.",
        validate_default=True,
    )
    size_max_bytes: int = Field(1 << 30, ge=4096, description="Nothing more is recorded when the file is this large.")
    hashes_max: int = Field(
        16_384,
        ge=1,
        description="Chunk hashes that are remembered, so that a prefix is not recorded twice; 250 bytes each.",
    )
    salts: SaltStyle = Field("hashed", description="Whether the recording names cache salts or digests of them.")

    @field_validator("output")
    @classmethod
    def _is_named(cls, output: Path) -> Path:
        if not output.name:
            raise ValueError("a recording needs a file; name one with --trace-output")
        return output
