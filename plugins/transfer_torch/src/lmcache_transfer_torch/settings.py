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
