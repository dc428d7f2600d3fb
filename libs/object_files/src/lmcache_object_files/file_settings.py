"""Settings that every adapter with files has."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Annotated, Final

from pydantic import Field, field_validator

from lmcache_core import PluginSettings

RESERVED_NAMES: Final = (".lock", ".damaged")


class FileSettings(PluginSettings):
    """Where files go, how they are written, and how much may be kept.  An adapter subclasses it and adds what is its own."""

    base_path: Annotated[
        Path, Field(description="Directory that holds the objects; created if need be, owned by one running server.")
    ]
    relative_tmp_dir: Annotated[
        str,
        Field(
            description="Where files are while they are written, relative to base_path and below it.",
        ),
    ] = ".tmp"
    read_ahead_size: Annotated[
        int | None,
        Field(
            gt=0,
            description="Bytes that the kernel fetches ahead of a read; none: the whole file. Not with use_odirect.",
        ),
    ] = None
    use_odirect: Annotated[
        bool, Field(description="Bypass the page cache where the file system allows it; else a warning, and buffered.")
    ] = False
    max_capacity_gb: Annotated[
        float, Field(ge=0, allow_inf_nan=False, description="Most that is kept, in GiB; 0 means no limit.")
    ] = 0.0
    fsync: Annotated[
        bool, Field(description="Answer a store only when file and directory entry are on the medium.")
    ] = False
    persist_enabled: Annotated[
        bool, Field(description="Keep the objects when the server stops; false removes them in an orderly stop.")
    ] = True

    @property
    def capacity_bytes(self) -> int | None:
        """None: no limit."""
        return int(self.max_capacity_gb * 2**30) if self.max_capacity_gb else None

    @field_validator("base_path", mode="before")
    @classmethod
    def _not_empty(cls, value: object) -> object:
        if isinstance(value, str) and not value.strip():
            raise ValueError("must name a directory")
        return value

    @field_validator("relative_tmp_dir")
    @classmethod
    def _below_base(cls, value: str) -> str:
        path = PurePosixPath(value)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in value:
            raise ValueError("must be a directory below base_path, given relative to it")
        if path.parts[0] in RESERVED_NAMES:
            raise ValueError(f"{path.parts[0]} is used for something else; choose another name")
        return str(path)
