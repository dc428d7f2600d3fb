"""Settings of the subscriber `lookup_hash`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from lmcache_core import PluginSettings
from lmcache_observability.shown_salt import SaltStyle


class LookupHashSettings(PluginSettings):
    """JSON lines with the chunk hashes of each lookup, in files that rotate."""

    dir: Path = Field(description="Folder for the files, which only their owner can read; made where it is missing.")
    rotation_interval: float = Field(21600.0, gt=0, description="Seconds after which a new file is started.")
    rotation_max_size: int = Field(104857600, ge=1, description="Bytes after which a new file is started.")
    max_files: int = Field(100, ge=1, description="Files that are kept; the oldest go.")
    salts: SaltStyle = Field("hashed", description="Whether lines name cache salts or digests of them.")
