"""Settings of the `dax` adapter."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, field_validator

from lmcache_core import HEADER_BYTES, PluginSettings

SLOT_ALIGN_BYTES: Final = 4096
WORKERS_MAX: Final = 256

Workers = Annotated[int, Field(ge=1, le=WORKERS_MAX)]


class DaxSettings(PluginSettings):
    """Which memory is mapped, how it is cut into slots, and whether what it holds outlives the server."""

    device_path: Annotated[
        Path | tuple[Path, ...],
        Field(
            examples=["/dev/dax1.0"],
            description="Device-DAX path (/dev/dax1.0) or file; several are striped slot by slot. Owned by one running server.",
        ),
    ]
    max_dax_size_gb: Annotated[
        float,
        Field(
            gt=0,
            allow_inf_nan=False,
            examples=[100],
            description="GiB that are mapped of each device; an empty file is made that long.",
        ),
    ]
    slot_bytes: Annotated[
        int,
        Field(
            gt=HEADER_BYTES,
            multiple_of=SLOT_ALIGN_BYTES,
            examples=[268435456],
            description="Size of a slot, which holds one object: at least a full chunk and 4096 bytes for its header page.",
        ),
    ]
    num_store_workers: Annotated[Workers, Field(description="Threads that copy into the slots.")] = 1
    num_lookup_workers: Annotated[
        Workers, Field(description="Accepted and not needed: lookups are answered from memory.")
    ] = 1
    num_load_workers: Annotated[
        Workers, Field(description="Threads that copy out of the slots, and check what they copy.")
    ] = Field(default_factory=lambda: min(4, os.cpu_count() or 1))
    persist_enabled: Annotated[
        bool, Field(description="Find the objects again after a restart or a kill; otherwise each start begins empty.")
    ] = False
    overwrite_device: Annotated[
        bool, Field(description="Take a device over that holds something else, which is lost.")
    ] = False

    @field_validator("device_path", mode="before")
    @classmethod
    def _one_or_several(cls, value: object) -> object:
        paths = value if isinstance(value, list | tuple) else [value]
        if not paths or any(isinstance(path, str) and not path.strip() for path in paths):
            raise ValueError("must name a device or a file")
        if len(set(map(str, paths))) < len(paths):
            raise ValueError("names the same device twice")
        return value

    @property
    def device_paths(self) -> tuple[Path, ...]:
        """One, or those that are striped, in their order."""
        return self.device_path if isinstance(self.device_path, tuple) else (self.device_path,)

    @property
    def device_bytes(self) -> int:
        """Most that is mapped of each device."""
        return int(self.max_dax_size_gb * 2**30)
