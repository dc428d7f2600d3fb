"""Settings of the `fs` adapter."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from lmcache_object_files import FileSettings


class FsSettings(FileSettings):
    """Where files go, how they are written, and how much may be kept."""

    num_workers: Annotated[int, Field(ge=1, le=256, description="Files that are read or written at the same time.")] = 4
