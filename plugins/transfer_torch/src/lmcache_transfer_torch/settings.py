"""The flags of `lmcache server` that are about server-driven transfer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from lmcache_core import PluginSettings


class TransferFlags(PluginSettings):
    """Server-driven transfer."""

    isolated_ipc: bool = Field(
        False,
        description="Engines and this server share no process namespace: GPU memory and events are shared as plain CUDA "
        "handles; engines need `lmcache.mp.isolated_ipc` then.",
    )
    null_block_id: int = Field(
        0,
        ge=0,
        le=2**31 - 1,
        description="ID of the null (padding) block of an engine's cache: it is never read, written or stored.",
    )
    separate_object_groups: bool = Field(
        False,
        description="Layers that attend to a window only are stored apart, so that a hit needs just the end of a prefix "
        "of them. Changes what objects are called: what was stored before is not found.",
    )


def apply(values: TransferFlags, given: frozenset[str]) -> Mapping[str, dict[str, Any]]:
    """The settings of `lmcache_driven` that were given.  Those that ask for nothing do not ask for the module, either."""
    asked = {name: getattr(values, name) for name in TransferFlags.model_fields if name in given}
    is_asked = any(value != TransferFlags.model_fields[name].default for name, value in asked.items())
    return {"request_module:lmcache_driven": asked} if is_asked else {}


class FileFlags(PluginSettings):
    """L1 in a file on a fast disk."""

    gds_l1_path: str | None = Field(
        None,
        min_length=1,
        description="File, or folder for one, on a fast disk that is L1 instead of memory: --l1-size-gb of it are "
        "allocated at the start. Engines do not map it.",
    )
    gds_l1_use_direct_io: bool = Field(
        True, description="Copies between a GPU and that file go past the page cache, where the disk can do that."
    )


def apply_file(values: FileFlags, given: frozenset[str]) -> Mapping[str, dict[str, Any]]:
    """The L1 memory `file`, where a path was given."""
    if values.gds_l1_path is None:
        return {}
    return {"l1_memory:file": {"path": values.gds_l1_path, "use_direct_io": values.gds_l1_use_direct_io}}
